"""The official MCP client against the example server: `client.py SCENARIO MARKER COMMAND...`.

A scenario fails with an assertion. MARKER is an argument that no other process of the host has, by which a guest's
processes are found in /proc.
"""

import base64
import os
import sys
import time
from functools import partial

import anyio
from mcp import Client, StdioServerParameters

SCENARIO, MARKER, *COMMAND = sys.argv[1:]
HEAVY = f"sleep {MARKER} & sleep {MARKER} & wait"


def marked():
    """Processes that run `sleep MARKER`."""
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        found += words[:2] == [b"sleep", MARKER.encode()]
    return found


async def until(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        await anyio.sleep(0.02)


async def call(client, tool, code, **arguments):
    result = await client.call_tool(tool, {"code": code, **arguments})
    assert not result.is_error, result
    # What a guest prints cannot be taken for what the sandbox says.
    text = result.content[0].text
    assert " after " in text.split("\n")[0], text
    assert all(f"| {line}" in text for line in result.structured_content["stdout"].splitlines()[:2]), text
    return result.structured_content


async def refused(client, *words, **arguments):
    result = await client.call_tool("run_python", arguments)
    text = result.content[0].text
    assert result.is_error, result
    for word in words:
        assert word in text, text


async def tools(client):
    listed = (await client.list_tools()).tools
    assert sorted(tool.name for tool in listed) == ["run_node", "run_python", "run_shell"]
    for tool in listed:
        assert tool.description
        assert tool.input_schema["required"] == ["code"]
        assert "stdout" in tool.output_schema["properties"]


async def languages(client):
    report = await call(client, "run_python", "print(input()[::-1])", stdin="abc\n")
    assert report["success"] and report["exit_code"] == 0 and report["stdout"] == "cba\n", report
    report = await call(client, "run_shell", "tr a-c A-C | sort -r; ls /nowhere", stdin="a\nb\n")
    assert not report["success"] and report["stdout"] == "B\nA\n" and "nowhere" in report["stderr"], report


async def node(client):
    code = "console.log(require('fs').readFileSync(0, 'utf8').length)"
    report = await call(client, "run_node", code, stdin="12345")
    assert report["success"] and report["stdout"] == "5\n", report


async def files(client):
    raw = bytes(range(256))
    report = await call(
        client,
        "run_python",
        "import shutil; shutil.copy('in/raw', 'raw'); open('text', 'w').write(open('in/text').read() + '!')",
        files={"in/raw": {"base64": base64.b64encode(raw).decode()}, "in/text": "täxt"},
        outputs=["raw", "text", "none"],
    )
    assert report["success"], report
    assert base64.b64decode(report["files"]["raw"]["base64"]) == raw, report
    assert report["files"]["text"] == "täxt!", report
    assert list(report["missing"]) == ["none"], report


async def planted(client):
    """What a guest puts where a file is expected leads nowhere and holds up nothing."""
    code = """
import os
os.symlink('/etc/hostname', 'link')
os.symlink('/etc', 'directory')
os.mkfifo('pipe')
os.mkdir('folder')
open('huge', 'wb').truncate(5 << 20)
open('plain', 'w').write('plain')
"""
    paths = ["link", "directory/hostname", "pipe", "folder", "huge", "plain"]
    report = await call(client, "run_python", code, outputs=paths)
    assert report["files"] == {"plain": "plain"}, report
    assert sorted(report["missing"]) == sorted(paths[:-1]), report
    assert "5242880 bytes" in report["missing"]["huge"], report


async def failures(client):
    report = await call(client, "run_python", "raise SystemExit(7)")
    assert report["exit_code"] == 7 and not report["success"] and "violation" not in report, report
    report = await call(client, "run_python", "import os; os.system('id'); print('went on')")
    assert "execve" in report["violation"] and report["exit_code"] == 0 and not report["success"], report
    assert report["stdout"] == "went on\n", report
    report = await call(client, "run_python", "while True: pass", limits={"wall_clock": 1})
    assert "wall clock" in report["ended"] and "exit_code" not in report, report
    report = await call(client, "run_python", "x = bytearray(10**9)", limits={"memory": 64 << 20})
    assert "out of memory" in report["ended"], report
    result = await client.call_tool("run_python", {"code": "print('x' * 10**6)", "limits": {"output": 1000}})
    report = result.structured_content
    assert report["truncated"] and len(report["stdout"]) < 1200, report
    result = await client.call_tool("run_python", {"code": "import os; os.system('id')"})
    assert "no other programs: execve was refused" in result.content[0].text, result


async def arguments(client):
    await refused(client, "limits.memory", "2147483648", code="", limits={"memory": 1 << 40})
    await refused(client, "limits.wall_clock", "0.1 to 120", code="", limits={"wall_clock": 0})
    await refused(client, "limits.pids", "1 to 256", code="", limits={"pids": 1000})
    await refused(client, "`code`")
    await refused(client, "`timeout`", "`wall_clock`", code="", limits={"timeout": 3})
    await refused(client, "files: a", "base64", code="", files={"a": {"base64": "?"}})
    await refused(client, "../a", code="", files={"../a": ""})
    await refused(client, "../../etc/hostname", "without '..'", code="", outputs=["../../etc/hostname"])
    await refused(client, "/etc/hostname", "relative", code="", outputs=["/etc/hostname"])
    await refused(client, "outputs", "16", code="", outputs=[str(number) for number in range(17)])
    report = await call(client, "run_python", "print('still here')")
    assert report["stdout"] == "still here\n", report


async def progress(client):
    heard = []

    async def hear(done, total, message):
        heard.append((done, total, message))

    code = "import time; time.sleep(1.6)"
    await client.call_tool("run_python", {"code": code, "limits": {"wall_clock": 60}}, progress_callback=hear)
    assert len(heard) >= 2, heard
    assert [done for done, *_ in heard] == sorted({done for done, *_ in heard}), heard
    assert all(total == 60 and "running" in message for _, total, message in heard), heard


async def cancellation(client):
    """A call that is given up kills the guest's tree, and touches neither another call nor the server."""
    async with anyio.create_task_group() as group:
        # Long enough that nothing but the cancellation can be what ends it.
        group.start_soon(partial(call, client, "run_shell", HEAVY, limits={"wall_clock": 120}))
        await until(lambda: marked() == 2, "the guest has started")
        # Calls run side by side: this one begins and ends while the other goes on.
        report = await call(client, "run_python", "print('beside it')")
        assert report["stdout"] == "beside it\n", report
        assert marked() == 2
        group.cancel_scope.cancel()
    await until(lambda: marked() == 0, "the guest's tree is gone")
    report = await call(client, "run_python", "print('after it')")
    assert report["stdout"] == "after it\n", report


async def together(client):
    reports = {}

    async def one(number):
        reports[number] = await call(client, "run_python", f"print({number})", limits={"pids": 10 + number % 3})

    async with anyio.create_task_group() as group:
        for number in range(24):
            group.start_soon(one, number)
    assert {number: report["stdout"] for number, report in reports.items()} == {n: f"{n}\n" for n in range(24)}


async def main():
    async with Client(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])) as client:
        await globals()[SCENARIO](client)


anyio.run(main)
