import asyncio, concurrent.futures, json, mmap, multiprocessing, os, pathlib, resource, select
import signal, socket, sqlite3, tempfile, threading, time


def files(directory):
    path = pathlib.Path(directory, "a")
    path.write_text(json.dumps([1, 2]))
    path.chmod(0o600)
    os.utime(path, (1, 1))
    os.rename(path, path.with_name("b"))
    os.symlink("b", path)
    os.link(path.with_name("b"), path.with_name("c"))
    os.mkfifo(path.with_name("d"))
    with open(path.with_name("e"), "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as memory:
            memory[0] = 1
            memory.flush()
        os.fsync(file.fileno())
    return sorted(os.listdir(directory))


def database(directory):
    connection = sqlite3.connect(os.path.join(directory, "x.db"))
    connection.execute("pragma journal_mode=wal")
    connection.execute("create table t(a)")
    connection.executemany("insert into t values(?)", [(n,) for n in range(100)])
    connection.commit()
    return connection.execute("select sum(a) from t").fetchone()[0]


async def loop():
    running = asyncio.get_running_loop()
    running.add_signal_handler(signal.SIGUSR1, lambda: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0)
    left, right = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=left)
    writer.write(b"to")
    await writer.drain()
    right.setblocking(False)
    seen = await running.sock_recv(right, 2)
    writer.close()
    return seen


def child():
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def threads():
    seen = []
    started = [threading.Thread(target=seen.append, args=(1,)) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return len(seen)


def refused(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return "allowed"


with tempfile.TemporaryDirectory() as scratch:
    assert files(scratch) == ["a", "b", "c", "d", "e"]
    assert database(scratch) == 4950
assert asyncio.run(loop()) == b"to"
assert child() == 3
assert threads() == 4
with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
signal.setitimer(signal.ITIMER_REAL, 100)
signal.alarm(0)
time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
assert select.select([], [], [], 0) == ([], [], [])
print("works; socket", refused(socket.socket), "exec", refused(lambda: os.execv("/bin/true", ["true"])))
