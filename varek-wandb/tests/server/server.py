#!/usr/bin/env python3
"""A Weights & Biases server for tests, and a judge of what clients sent to it. Python's standard library, 3.10 or later.

  server.py serve --record FILE [--port P] [--fault RULE]...    faults.py says what rules there are
  server.py normalize FILE [--all] [--run ID]                   what the server now holds
  server.py diff A B [--all]                                    prints "same", or a difference and exits with 1
  server.py stats FILE                                          how many requests of each kind and status

While it serves: POST /__fault {"rule": "..."}, POST /__clear, POST /__down {"seconds": S} (every connection is closed
for that long), POST /__stop {"run": ID} (the user pressed stop), GET /__faults (with counters), GET /__state.
"""
import argparse
import signal
import sys

from judge import difference, normalize, shown, statistics
from service import serve


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    one = commands.add_parser('serve')
    one.add_argument('--host', default='127.0.0.1')
    one.add_argument('--port', type=int, default=0, help='0 takes a free one')
    one.add_argument('--port-file', help='is written when the server is ready: its port, that of the control paths, that of the other origin')
    one.add_argument('--record', required=True, help='the recording, one JSON object a line')
    one.add_argument('--keep', action='store_true', help='go on with the recording and what was held')
    one.add_argument('--entity', default='fake-team', help='the default entity')
    one.add_argument('--api-key', help='the only key that is taken; else any')
    one.add_argument('--fault', action='append', default=[])
    one.add_argument('--cert', help='serve https with this certificate (PEM)')
    one.add_argument('--key', help='its private key (PEM)')
    one.add_argument('--url-lifetime', type=float, help='seconds that an upload URL is worth something')
    one.add_argument('--min-part', type=int, help='bytes that each part but the last must have; 5 MiB')
    one = commands.add_parser('normalize')
    one.add_argument('file')
    one.add_argument('--all', action='store_true', help='with what differs from client to client')
    one.add_argument('--run', help='of this run only')
    one = commands.add_parser('diff')
    one.add_argument('a')
    one.add_argument('b')
    one.add_argument('--all', action='store_true')
    one = commands.add_parser('stats')
    one.add_argument('file')
    return parser.parse_args()


def terminate(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = arguments()
    if options.command == 'serve':
        signal.signal(signal.SIGTERM, terminate)
        serve(options)
    elif options.command == 'normalize':
        print(shown(normalize(options.file, options.all, options.run)))
    elif options.command == 'diff':
        found = difference(options.a, options.b, options.all)
        print(found or 'same')
        return 1 if found else 0
    else:
        for key, count in sorted(statistics(options.file).items(), key=str):
            print(count, *key)
    return 0


if __name__ == '__main__':
    sys.exit(main())
