//! Node.js, under the preset `node`.

use varek_core::{Command, Network, Policy, Sandbox, SyscallPolicy};

use crate::support::text;
use crate::{assert_honest, patient, program_or_return, sandbox, support};

#[track_caller]
fn prints(sandbox: &Sandbox, source: &str, expected: &str, denied: &[&str]) {
    let command = Command::new("node").arg("main.js").file("main.js", source);
    let outcome = sandbox.run(command).unwrap();
    assert_honest(&outcome, expected, denied);
    assert_eq!(outcome.stderr.to_text(), "");
}

#[test]
fn workers_wasm_files_and_timers_work() {
    program_or_return!("node");
    let sandbox = sandbox!(patient(Policy::node()));
    prints(
        &sandbox,
        r"
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
const crypto = require('node:crypto'), fs = require('node:fs'), os = require('node:os'), zlib = require('node:zlib');
if (!isMainThread) { Atomics.add(new Int32Array(workerData.shared), 0, workerData.n); parentPort.postMessage(workerData.n ** 2); return; }
(async () => {
  const shared = new SharedArrayBuffer(4);
  const ask = n => new Promise((done, failed) => {
    const worker = new Worker(__filename, { workerData: { n, shared } });
    worker.on('message', done); worker.on('error', failed);
  });
  console.log((await Promise.all([1, 2, 3].map(ask))).join(), new Int32Array(shared)[0]);
  // (func (export add) (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  const code = new Uint8Array([0,97,115,109,1,0,0,0,1,7,1,96,2,127,127,1,127,3,2,1,0,7,7,1,3,97,100,100,0,0,10,9,1,7,0,32,0,32,1,106,11]);
  console.log((await WebAssembly.instantiate(code)).instance.exports.add(40, 2));
  fs.writeFileSync('a', 'x'.repeat(100000)); fs.mkdirSync('d/e', { recursive: true }); fs.rmSync('d', { recursive: true });
  await require('node:stream/promises').pipeline(fs.createReadStream('a'), zlib.createGzip(), fs.createWriteStream('a.gz'));
  console.log(zlib.gunzipSync(fs.readFileSync('a.gz')).length, (await fs.promises.readdir('.')).sort().join());
  console.log(crypto.createHash('sha256').update('').digest('hex').slice(0, 8), crypto.randomUUID().length,
              (await new Promise(done => crypto.scrypt('a', 'b', 8, (_, key) => done(key)))).length);
  console.log(os.cpus().length > 0, os.availableParallelism?.() !== 0, os.totalmem() > 0, os.tmpdir() === process.cwd());
  console.log(new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', hour: 'numeric' }).format(0), typeof require('node:http').createServer);
  process.on('SIGUSR2', () => { console.log('signal'); clearInterval(ticking); });
  const ticking = setInterval(() => {}, 1000);
  setTimeout(() => process.kill(process.pid, 'SIGUSR2'), 5);
})();
",
        "1,4,9 6\n42\n100000 a,a.gz,main.js\ne3b0c442 36 8\ntrue true true true\n1 AM function\nsignal\n",
        &[],
    );
}

#[test]
fn modules_and_standard_input_are_read() {
    program_or_return!("node");
    let sandbox = sandbox!(patient(Policy::node()));
    let source = "import { two } from './lib/two.mjs'; import fs from 'node:fs';\n\
                  let text = ''; for await (const piece of process.stdin) text += piece;\n\
                  const { default: data } = { default: JSON.parse(fs.readFileSync('data.json')) };\n\
                  process.stdout.write(`${text.trim()} ${two} ${data.three}\\n`);";
    let command = Command::new("node")
        .arg("main.mjs")
        .file("main.mjs", source)
        .file("lib/two.mjs", "export const two = 2;")
        .file("data.json", "{\"three\": 3}")
        .stdin("one\n");
    let outcome = sandbox.run(command).unwrap();
    assert_honest(&outcome, "one 2 3\n", &[]);
}

#[test]
fn children_servers_and_watchers_fail_with_errors_that_programs_expect() {
    program_or_return!("node");
    let sandbox = sandbox!(patient(Policy::node()));
    let source = r"
try { require('node:child_process').execFileSync('/bin/echo', ['ran']); } catch (e) { console.log(e.code); }
require('node:http').createServer().on('error', e => console.log(e.code)).listen(0, '127.0.0.1');
try { require('node:fs').watch('.'); } catch (e) { console.log(e.code); }
";
    let outcome = sandbox
        .run(Command::new("node").arg("main.js").file("main.js", source))
        .unwrap();
    assert_eq!(text(&outcome), "EPERM\nEPERM\nEPERM\n", "{outcome}");
    assert_eq!(
        outcome.violation().and_then(|v| v.syscall()),
        Some("socketpair")
    );
    for call in ["socket", "inotify_init1"] {
        assert!(support::denied(&outcome, call).count > 0);
    }
    support::assert_gone(&outcome);
}

#[test]
fn children_work_with_the_calls_of_a_shell() {
    program_or_return!("node");
    let policy = patient(Policy::node()).syscalls(|_| SyscallPolicy::shell());
    let sandbox = sandbox!(policy);
    prints(
        &sandbox,
        r"
const child = require('node:child_process');
if (process.send) { process.on('message', n => { process.send(n + 1); process.disconnect(); }); return; }
process.stdout.write(child.execFileSync('echo', ['ran']));
process.stdout.write(child.execSync('echo a b | wc -w'));
const cat = child.spawn('cat'); cat.stdin.end('through\n'); cat.stdout.pipe(process.stdout, { end: false });
cat.on('close', code => {
  console.log('closed', code);
  const fork = child.fork(__filename); fork.send(41); fork.on('message', n => console.log(n));
  fork.on('exit', code => {
    console.log('exit', code);
    const sleep = child.spawn('sleep', ['1000']); sleep.on('exit', (_, signal) => console.log(signal)); sleep.kill();
  });
});
",
        "ran\n2\nthrough\nclosed 0\n42\nexit 0\nSIGTERM\n",
        &[],
    );
}

#[test]
fn the_event_loop_goes_on_without_a_ring_and_that_is_no_violation() {
    program_or_return!("node");
    let sandbox = sandbox!(patient(Policy::node()));
    let source = "require('node:fs').promises.readFile(__filename).then(text => console.log(text.length > 9));";
    // libuv tries it where it is told to, and some of its versions on their own.
    let command = Command::new("node").arg("main.js").file("main.js", source);
    let outcome = sandbox.run(command.env("UV_USE_IO_URING", "1")).unwrap();
    assert_honest(&outcome, "true\n", &[]);
    let tried = outcome
        .denials
        .iter()
        .find(|(name, _)| *name == "io_uring_setup");
    if let Some((_, call)) = tried {
        assert_eq!(call.first.answer, varek_core::Answer::Probe);
    } else {
        support::not_run(
            crate::test_name!(),
            "this Node does not ask for a ring, or denied calls are not reported",
        );
    }
}

#[test]
fn copies_of_files_keep_their_modes() {
    program_or_return!("node");
    let sandbox = sandbox!(patient(Policy::node()));
    let source = "const fs = require('node:fs'); fs.writeFileSync('a', 'x'); fs.chmodSync('a', 0o640); fs.mkdirSync('d'); fs.utimesSync('a', 1, 2);\n\
                  fs.copyFileSync('a', 'b'); fs.copyFileSync('a', 'd/c'); fs.cpSync('d', 'e', { recursive: true, preserveTimestamps: true });\n\
                  for (const f of ['b', 'e/c']) console.log(fs.statSync(f).mode & 0o777);\n\
                  fs.cpSync('a', 'f', { preserveTimestamps: true }); console.log(fs.statSync('f').mtimeMs);";
    prints(&sandbox, source, "416\n416\n2000\n", &[]);
}

#[test]
fn a_server_and_its_client_work_where_the_network_is_granted() {
    program_or_return!("node");
    // A number that was free a moment ago, of this host alone.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let network = Network::tcp([port], [port]);
    let sandbox = sandbox!(patient(Policy::node()).network(network));
    let source = r"
const http = require('node:http');
const server = http.createServer((request, response) => response.end('served ' + request.url));
server.listen(PORT, '127.0.0.1', async () => {
  console.log(await (await fetch('http://127.0.0.1:PORT/page')).text());
  http.get({ host: '127.0.0.1', port: PORT, path: '/', agent: false }, response => {
    response.setEncoding('utf8').on('data', data => console.log(data)).on('end', () => { server.close(); server.closeAllConnections(); });
  });
});
";
    let source = source.replace("PORT", &port.to_string());
    prints(&sandbox, &source, "served /page\nserved /\n", &[]);
}
