"""Tests of the server and the judge, run by tests/server.rs: python3 -m unittest discover -s tests/server."""
import base64
import hashlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from artifacts import manifest_digest
from content import Search, base64_md5, canonical
from faults import Faults, Rule
from graphql import Document, GraphQlError
from judge import difference, normalize

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = 'k3y' * 13 + '0'
BASIC = 'Basic ' + base64.b64encode(f'api:{KEY}'.encode()).decode()
MIB = 1 << 20


class ServerCase(unittest.TestCase):
    """A server of its own for each test, and the least that a client is."""
    arguments: list[str] = []

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.record = os.path.join(self.directory.name, 'record.jsonl')
        self.launch()
        self.addCleanup(self.directory.cleanup)
        self.addCleanup(self.stop)

    def launch(self, *more):
        ports = os.path.join(self.directory.name, 'ports')
        if os.path.exists(ports):
            os.remove(ports)
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, 'server.py'), 'serve', '--record', self.record, '--port-file', ports,
             '--api-key', KEY, *self.arguments, *more], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not os.path.exists(ports):
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail('the server does not start')
            time.sleep(0.01)
        with open(ports, encoding='utf-8') as file:
            self.port, self.control, self.other = map(int, file.read().split())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def send(self, method, path, body=b'', headers=None, port=None):
        """The answer: (status, headers, body)."""
        connection = http.client.HTTPConnection('127.0.0.1', port or self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def steer(self, path, **body):
        status, _, answer = self.send('POST', path, json.dumps(body).encode(), port=self.control)
        self.assertEqual(status, 200, answer)

    def query(self, root, selection, authorization=BASIC, **given):
        text = f'mutation M($input: I!) {{ {root}(input: $input) {{ {selection} }} }}'
        body = json.dumps({'query': text, 'variables': {'input': given}}).encode()
        status, _, answer = self.send('POST', '/graphql', body, {'Authorization': authorization})
        answer = json.loads(answer)
        return status, answer['data'][root] if status == 200 else answer

    def run_(self, name='r', **given):
        return self.query('upsertBucket', 'bucket { id stopped }', name=name, modelName='p', **given)

    def stream(self, name='r', **body):
        path = f'/files/fake-team/p/{name}/file_stream'
        return self.send('POST', path, json.dumps(body).encode(), {'Authorization': BASIC})

    def history(self, *lines, offset=0):
        content = [json.dumps({'_step': offset + i, 'x': x}) for i, x in enumerate(lines)]
        return self.stream(files={'wandb-history.jsonl': {'offset': offset, 'content': content}})

    def url_of_file(self, name='f.txt'):
        _, answer = self.query('createRunFiles', 'files { uploadUrl }', entityName='fake-team', projectName='p',
                               runName='r', files=[name])
        return self.path(answer['files'][0]['uploadUrl'])

    @staticmethod
    def path(url):
        parsed = urlsplit(url)
        return f'{parsed.path}?{parsed.query}'

    def put(self, path, body, headers=None, port=None):
        return self.send('PUT', path, body, {'X-Fake-Storage': '1', **(headers or {})}, port)

    def alert(self, title='t', text='x', wait=60_000):
        return self.query('notifyScriptableRunAlert', 'success', entityName='fake-team', projectName='p', runName='r',
                          title=title, text=text, waitDuration=wait)

    def artifact(self, contents):
        """Makes a version, as far as to its files: (id, node of each file)."""
        digest = manifest_digest({path: {'digest': base64_md5(data)} for path, data in contents.items()})
        _, answer = self.query(
            'createArtifact', 'artifact { id }', entityName='fake-team', projectName='p', runName='r',
            artifactTypeName='t', artifactCollectionName='a', digest=digest, digestAlgorithm='MANIFEST_MD5')
        return answer['artifact']['id']

    def commit(self, id_, entries):
        manifest = json.dumps({'version': 1, 'storagePolicy': 'wandb-storage-policy-v1', 'contents': entries}).encode()
        _, answer = self.query(
            'createArtifactManifest', 'artifactManifest { file { uploadUrl } }', artifactID=id_, name='m.json',
            digest=base64_md5(manifest), entityName='fake-team', projectName='p', runName='r')
        url = self.path(answer['artifactManifest']['file']['uploadUrl'])
        self.assertEqual(self.put(url, manifest)[0], 200)
        return self.query('commitArtifact', 'artifact { id }', artifactID=id_)

    def judged(self):
        return normalize(self.record)

    def violations(self):
        return self.judged()['violations']


class Runs(ServerCase):
    def test_a_good_client_has_no_violations_and_all_that_it_sent_is_there(self):
        config = json.dumps({'lr': {'value': 1.0}, '_wandb': {'value': {'t': {}}}})
        self.assertEqual(self.run_(config=config, displayName='d')[0], 200)
        self.assertEqual(self.history(1, float('nan'))[0], 200)
        self.assertEqual(self.put(self.url_of_file(), b'hello')[0], 200)
        self.assertEqual(self.alert()[0], 200)
        self.assertEqual(self.stream(complete=True, exitcode=3)[0], 200)
        document = self.judged()
        run = document['runs'][0]
        self.assertEqual((run['config'], run['resumable'], run['display_name']), ({'lr': 1}, True, 'd'))
        self.assertEqual([row['x'] for row in run['history']], [1, {'$float': 'NaN'}])
        self.assertEqual(run['files']['f.txt']['text'], 'hello')
        self.assertEqual((run['exit_code'], run['state'], len(run['alerts'])), (3, 'failed', 1))
        self.assertEqual((document['violations'], document['duplicates'], document['resent']), ([], [], []))

    def test_a_key_that_is_not_the_one_is_refused(self):
        wrong = 'Basic ' + base64.b64encode(b'api:other').decode()
        self.assertEqual(self.query('upsertBucket', 'inserted', wrong, name='r')[0], 401)
        self.assertEqual(self.query('upsertBucket', 'inserted', '', name='r')[0], 401)
        self.assertEqual(self.judged()['runs'], [])

    def test_a_field_that_the_schema_lacks_is_refused(self):
        status, answer = self.run_(mood='good')
        self.assertEqual(status, 400)
        self.assertIn('"mood" is not defined', answer['errors'][0]['message'])

    def test_a_stream_without_a_run_is_a_violation(self):
        self.assertEqual(self.stream('nobody', uploaded=[])[0], 404)
        self.assertIn('there is no run', self.violations()[0])

    def test_lines_that_come_again_are_shown_once_they_were_acknowledged(self):
        self.run_()
        self.steer('/__fault', rule='on=file_stream,do=drop-after')
        with self.assertRaises((http.client.HTTPException, OSError)):
            self.history(1, 2)
        self.history(1, 2)
        self.assertEqual(self.judged()['resent'], [])
        self.history(2, 3, offset=1)
        document = self.judged()
        self.assertEqual(document['resent'], ['r: history lines 1 to 1'])
        self.assertEqual(len(document['runs'][0]['history']), 3)
        self.assertEqual(document['violations'], [])

    def test_other_content_a_gap_and_data_after_the_end_are_violations(self):
        self.run_()
        self.history(1)
        self.history(2)
        self.history(5, offset=4)
        self.stream(complete=True, exitcode=0)
        self.history(6, offset=5)
        self.assertEqual(self.violations(), [
            'file_stream: data after complete', 'history gap before line 4',
            'history line 0 was overwritten with other content'])

    def test_an_alert_is_not_delivered_again_within_its_wait(self):
        self.run_()
        self.alert(text='one')
        self.alert(text='two')
        self.alert(title='other', text='three')
        run = self.judged()['runs'][0]
        self.assertEqual([alert['text'] for alert in run['alerts']], ['one', 'three'])
        self.assertEqual(normalize(self.record, whole=True)['runs'][0]['suppressed_alerts'][0]['text'], 'two')
        self.assertEqual(self.violations(), [])

    def test_the_same_alert_delivered_twice_is_a_violation(self):
        self.run_()
        self.alert(wait=0)
        self.alert(wait=0)
        self.assertIn('was delivered twice', self.violations()[0])

    def test_a_stopped_run_hears_of_it(self):
        self.run_()
        self.assertNotIn('stopped', json.loads(self.history(1)[2]))
        self.steer('/__stop', run='r')
        self.assertTrue(json.loads(self.history(2, offset=1)[2])['stopped'])
        self.assertTrue(self.run_()[1]['bucket']['stopped'])

    def test_a_file_that_comes_again_is_a_duplicate_and_another_content_is_not(self):
        self.run_()
        for body in (b'a', b'b', b'b'):
            self.put(self.url_of_file(), body)
        self.assertEqual(self.judged()['duplicates'], ['r: f.txt'])

    def test_a_server_that_was_started_again_keeps_what_it_held(self):
        self.run_()
        self.history(1)
        url = self.url_of_file()
        self.stop()
        self.launch('--keep')
        self.assertEqual(self.put(url, b'x')[0], 200)
        self.history(2, offset=1)
        run = self.judged()['runs'][0]
        self.assertEqual((len(run['history']), list(run['files'])), (2, ['f.txt']))


class FaultRules(ServerCase):
    def test_several_rules_follow_each_other_and_count(self):
        for rule in ('on=file_stream,do=500,times=2', 'on=file_stream,do=429:0', 'on=upsertBucket,do=503,skip=1'):
            self.steer('/__fault', rule=rule)
        self.assertEqual(self.run_()[0], 200)
        self.assertEqual(self.run_()[0], 503)
        self.assertEqual([self.history(1)[0] for _ in range(4)], [500, 500, 429, 200])
        rules = json.loads(self.send('GET', '/__faults', port=self.control)[2])
        self.assertEqual([(rule['seen'], rule['done'], rule['left']) for rule in rules], [(4, 2, 0), (4, 1, 0), (2, 1, 0)])

    def test_retry_after_is_seconds_or_a_date_and_too_early_is_a_violation(self):
        self.run_()
        self.steer('/__fault', rule='on=file_stream,do=429:30')
        self.assertEqual(self.history(1)[1]['Retry-After'], '30')
        self.assertEqual(self.violations(), [])
        self.history(1)
        self.assertEqual(self.violations(), ['file_stream: tried again before Retry-After had passed'])
        self.steer('/__fault', rule='on=graphql,do=503:date:30')
        body = b'{"query": "{ viewer { entity } }"}'
        _, headers, _ = self.send('POST', '/graphql', body, {'Authorization': BASIC})
        seconds = parsedate_to_datetime(headers['Retry-After']).timestamp() - time.time()
        self.assertTrue(0 < seconds <= 30, seconds)

    def test_rate_limits_are_in_the_headers_and_the_request_is_handled(self):
        self.steer('/__fault', rule='on=graphql,do=ratelimit:2:5:50')
        body = b'{"query": "{ viewer { entity } }"}'
        status, headers, answer = self.send('POST', '/graphql', body, {'Authorization': BASIC})
        self.assertEqual((status, json.loads(answer)['data']['viewer']['entity']), (200, 'fake-team'))
        names = ('RateLimit-Remaining', 'RateLimit-Reset', 'RateLimit-Limit')
        self.assertEqual([headers[name] for name in names], ['2', '5', '50'])

    def test_an_expired_url_stays_expired_until_a_new_one_is_asked_for(self):
        self.run_()
        url = self.url_of_file()
        self.steer('/__fault', rule='on=upload.run,do=expire')
        self.assertEqual([self.put(url, b'x')[0] for _ in range(2)], [403, 403])
        self.assertEqual(self.put(self.url_of_file(), b'x')[0], 200)
        self.assertEqual(self.put(url.replace('nonce=', 'nonce=0'), b'x')[0], 403)

    def test_a_drop_midway_leaves_nothing(self):
        self.run_()
        url = self.url_of_file()
        self.steer('/__fault', rule='on=upload,do=drop-midway')
        with self.assertRaises((http.client.HTTPException, OSError)):
            self.put(url, bytes(3 * MIB))
        self.assertEqual(self.judged()['runs'][0]['files'], {})
        self.assertEqual(self.put(url, b'x')[0], 200)

    def test_the_server_is_down_and_comes_back(self):
        self.steer('/__down', seconds=3600)
        with self.assertRaises((http.client.HTTPException, OSError)):
            self.run_()
        self.steer('/__clear')
        self.assertEqual(self.run_()[0], 200)

    def test_a_rule_that_is_none_is_refused(self):
        for rule in ('on=any', 'do=explode', 'do=500,when=now'):
            with self.assertRaises(ValueError):
                Rule.parse(rule)
        faults = Faults()
        faults.add('do=500,times=inf')
        self.assertEqual([faults.take(['any']) for _ in range(3)], ['500'] * 3)


class Secrets(ServerCase):
    def test_a_key_at_the_storage_is_a_violation(self):
        self.run_()
        self.assertEqual(self.put(self.url_of_file(), b'x', {'Authorization': BASIC})[0], 200)
        self.assertEqual(self.violations(), ['upload: the API key was sent to the storage host'])

    def test_a_key_in_a_body_is_a_violation(self):
        self.run_()
        self.put(self.url_of_file(), b'.' * (2 * MIB) + KEY.encode())
        self.stream(files={'output.log': {'offset': 0, 'content': [f'key is {KEY}']}})
        self.assertEqual(self.violations(), [
            'file_stream: the API key is in the body', 'upload: the API key is in the body'])

    def test_a_redirect_leads_to_another_origin_where_a_key_is_a_violation(self):
        self.run_()
        url = self.url_of_file()
        self.steer('/__fault', rule='on=upload,do=redirect')
        status, headers, _ = self.put(url, b'x')
        self.assertEqual(status, 307)
        target = urlsplit(headers['Location'])
        self.assertEqual(target.port, self.other)
        self.assertEqual(self.put(self.path(headers['Location']), b'x', port=self.other)[0], 200)
        self.assertEqual(self.violations(), [])
        self.assertEqual(list(self.judged()['runs'][0]['files']), ['f.txt'])
        self.send('POST', '/graphql', b'{"query": "{ viewer { entity } }"}', {'Authorization': BASIC}, self.other)
        self.assertEqual(self.violations(), ['redirect: the API key was sent to another origin'])

    def test_a_secret_is_found_across_pieces(self):
        search = Search([b'secret'])
        search.feed(b'xxsec')
        self.assertFalse(search.found)
        search.feed(b'retxx')
        self.assertTrue(search.found)


class Parts(ServerCase):
    arguments = ['--min-part', '16']

    def upload(self, contents, parts):
        self.run_()
        whole = b''.join(parts)
        id_ = self.artifact({'big': contents})
        spec = {'artifactID': id_, 'name': 'big', 'md5': base64_md5(contents), 'uploadPartsInput': [
            {'partNumber': number, 'hexMD5': hashlib.md5(part).hexdigest()} for number, part in enumerate(parts, 1)]}
        selection = ('files { edges { node { storagePath uploadUrl artifact { id } '
                     'uploadMultipartUrls { uploadID uploadUrlParts { partNumber uploadUrl } } } } }')
        status, answer = self.query('createArtifactFiles', selection, artifactFiles=[spec], storageLayout='V2')
        self.assertEqual(status, 200, answer)
        node = answer['files']['edges'][0]['node']
        self.assertEqual(len(whole), sum(map(len, parts)))
        return id_, node

    def complete(self, id_, node, tags, action='Complete'):
        return self.query(
            'completeMultipartUploadArtifact', 'digest', artifactID=id_, storagePath=node['storagePath'],
            uploadID=node['uploadMultipartUrls']['uploadID'], completeMultipartAction=action,
            completedParts=[{'partNumber': number, 'hexMD5': tag} for number, tag in enumerate(tags, 1)])

    def send_parts(self, node, parts):
        tags = {}
        urls = node['uploadMultipartUrls']['uploadUrlParts']
        # Backwards: the order of parts is that of their numbers.
        for number, part in reversed(list(enumerate(parts))):
            md5 = {'Content-MD5': base64_md5(part)}
            status, headers, _ = self.put(self.path(urls[number]['uploadUrl']), part, md5)
            self.assertEqual(status, 200)
            tags[number] = headers['ETag']
        return [tags[number] for number in sorted(tags)]

    def test_parts_become_a_file_that_is_committed_by_the_digest_of_the_whole(self):
        parts = [b'a' * 20, b'b' * 20, b'c']
        whole = b''.join(parts)
        id_, node = self.upload(whole, parts)
        tags = self.send_parts(node, parts)
        status, answer = self.complete(id_, node, tags)
        self.assertEqual((status, answer), (200, {'digest': base64_md5(whole)}))
        # An answer that was lost: the client asks again.
        self.assertEqual(self.complete(id_, node, tags)[0], 200)
        entry = {'digest': base64_md5(whole), 'size': len(whole), 'birthArtifactID': id_}
        self.assertEqual(self.commit(id_, {'big': entry})[0], 200)
        document = self.judged()
        self.assertEqual((document['artifacts'][0]['state'], document['violations']), ('COMMITTED', []))
        self.assertEqual(document['artifacts'][0]['files']['big'], {'size': 41, 'md5': base64_md5(whole)})

    def test_a_part_that_is_missing_small_or_other_is_refused(self):
        parts = [b'a' * 20, b'b' * 20]
        id_, node = self.upload(b''.join(parts), parts)
        first = self.path(node['uploadMultipartUrls']['uploadUrlParts'][0]['uploadUrl'])
        self.assertEqual(self.put(first, b'z' * 20)[0], 400)
        tags = [hashlib.md5(part).hexdigest() for part in parts]
        self.assertIn('InvalidPart 1', str(self.complete(id_, node, tags)))
        self.send_parts(node, parts)
        self.assertIn('not all there', str(self.complete(id_, node, tags[:1])))
        self.assertEqual(self.complete(id_, node, tags)[0], 200)

        id_, node = self.upload(b'short', [b'sh', b'ort'])
        tags = self.send_parts(node, [b'sh', b'ort'])
        self.assertIn('EntityTooSmall', str(self.complete(id_, node, tags)))

    def test_an_upload_that_was_aborted_is_over(self):
        parts = [b'a' * 20, b'b']
        id_, node = self.upload(b''.join(parts), parts)
        tags = self.send_parts(node, parts)
        self.assertEqual(self.complete(id_, node, [], 'Abort')[0], 200)
        self.assertEqual(self.complete(id_, node, tags)[0], 400)
        first = self.path(node['uploadMultipartUrls']['uploadUrlParts'][0]['uploadUrl'])
        self.assertEqual(self.put(first, parts[0])[0], 404)

    def test_memory_and_the_recording_stay_small(self):
        parts = [bytes([number]) * (64 * MIB) for number in range(3)]
        id_, node = self.upload(b''.join(parts), parts)
        self.assertEqual(self.complete(id_, node, self.send_parts(node, parts))[0], 200)
        self.put(self.url_of_file(), parts[0])
        with open(f'/proc/{self.process.pid}/status', encoding='utf-8') as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith('VmHWM:'))
        self.assertLess(peak * 1024, 64 * MIB)
        self.assertLess(os.path.getsize(self.record), MIB)
        left = [name for _, _, names in os.walk(self.directory.name) for name in names]
        self.assertEqual(sorted(left), ['ports', 'record.jsonl'])
        self.assertEqual(self.judged()['runs'][0]['files']['f.txt']['size'], 64 * MIB)


class Tls(ServerCase):
    """Where `openssl` is there to make a certificate with."""

    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.cert, key = (os.path.join(made.name, name) for name in ('cert.pem', 'key.pem'))
        try:
            subprocess.run(
                ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
                 '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', self.cert],
                check=True, capture_output=True)
        except FileNotFoundError:
            self.skipTest('there is no openssl')
        self.arguments = ['--cert', self.cert, '--key', key]
        super().setUp()

    def test_https_is_served_and_so_are_its_urls(self):
        tls = ssl.create_default_context(cafile=self.cert)
        connection = http.client.HTTPSConnection('127.0.0.1', self.port, context=tls, timeout=60)
        text = 'mutation { upsertBucket(input: {name: "r", modelName: "p"}) { inserted } }'
        connection.request('POST', '/graphql', json.dumps({'query': text}), {'Authorization': BASIC})
        self.assertEqual(json.loads(connection.getresponse().read())['data'], {'upsertBucket': {'inserted': True}})
        connection.close()
        with self.assertRaises(ssl.SSLCertVerificationError):
            strange = http.client.HTTPSConnection('127.0.0.1', self.port, timeout=60)
            strange.request('GET', '/')
        self.steer('/__stop', run='r')


class Judging(ServerCase):
    def test_a_changed_value_is_a_difference_and_the_same_is_none(self):
        copies = []
        for value in (1, 1.0, 2):
            self.stop()
            self.launch()
            self.run_()
            self.history(value)
            copies.append(os.path.join(self.directory.name, f'{len(copies)}.jsonl'))
            os.link(self.record, copies[-1])
        self.assertEqual(difference(copies[0], copies[1]), '')
        self.assertIn('+     "x": 2', difference(copies[0], copies[2]))

    def test_nothing_is_not_compared(self):
        with self.assertRaises(ValueError):
            difference(self.record, self.record)

    def test_one_value_has_one_spelling(self):
        self.assertEqual(canonical({'b': 1.0, 'a': [True, 0.5]}), {'a': [True, 0.5], 'b': 1})
        self.assertIs(canonical(True), True)

    def test_a_document_that_is_not_one_is_refused(self):
        for text in ('{', 'query { a(', 'nonsense { a }', '{ a ~ }'):
            with self.assertRaises(GraphQlError):
                Document(text)

    def test_fragments_aliases_and_conditions_are_followed(self):
        document = Document('query Q($yes: Boolean = true, $n: Int!) { ...F b: a(n: $n) @include(if: $yes) '
                            'c: a(n: 1) @skip(if: $yes) } fragment F on X { d }')
        operation = document.pick('Q')
        document.bind(operation, {'n': 7})
        answer = document.run(operation['selection'], {'a': lambda given: given['n'], 'd': 'D'}, [])
        self.assertEqual(answer, {'d': 'D', 'b': 7})
        with self.assertRaises(GraphQlError):
            document.bind(operation, {})


if __name__ == '__main__':
    unittest.main()
