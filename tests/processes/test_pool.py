"""Isolated processes: whatever a task does costs one reply, and the next task finds a process."""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gemmdb.errors import GemmdbError
from gemmdb.processes.child import Task
from gemmdb.processes.fork_server import FORKS, ForkServer
from gemmdb.processes.pool import IsolatedProcess, Limits, Stopped, spread
from gemmdb.table.measurement import Status


@pytest.fixture
def start():
    """Makes IsolatedProcesses and ForkServers, which are closed at the end: `start(IsolatedProcess, ...)`."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, *arguments, **named: stack.enter_context(contextlib.closing(kind(*arguments, **named)))


@pytest.fixture(params=["fresh", pytest.param("forked", marks=pytest.mark.skipif(not FORKS, reason="Linux only"))])
def process(request, start):
    server = start(ForkServer, modules=("json", "gemmdb.no_such_module")) if request.param == "forked" else None
    return start(IsolatedProcess, limits=Limits(graceful_s=0.2, terminate_s=0.3), server=server)


def test_a_task_is_answered_in_another_process_that_stays(process):
    first = process.call(20, os.getpid)
    assert first.status is Status.OK
    assert first.value == process.pid != os.getpid()
    assert process.call(20, os.getpid).value == first.value


@pytest.mark.parametrize(
    ("function", "arguments", "status", "detail"),
    [
        (ctypes.string_at, (0,), Status.CRASH, "SIGSEGV"),
        (os.abort, (), Status.CRASH, "SIGABRT"),
        (os._exit, (3,), Status.CRASH, "code 3"),
        (int, ("x",), Status.ERROR, "ValueError: invalid literal"),
        (eval, ("lambda: 1",), Status.ERROR, "does not pickle"),
        (bytearray, (2**62,), Status.OOM, "MemoryError"),
    ],
)
def test_a_failure_is_a_reply_and_the_process_goes_on(process, function, arguments, status, detail):
    before = process.call(20, os.getpid).value
    reply = process.call(20, function, *arguments)
    assert (reply.status, detail in reply.detail) == (status, True), reply
    after = process.call(20, os.getpid)
    assert after.status is Status.OK
    assert (after.value != before) == (status is Status.CRASH)


KILLED = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'], check=True)"
)
WRAPPED = f"""
try:
    {KILLED}
except Exception as error:
    raise RuntimeError("C++ compile error Command: g++ " + 400 * "x") from error
"""


@pytest.mark.parametrize(
    "code",
    [
        KILLED,
        WRAPPED,
        "raise RuntimeError(400 * 'x' + ' g++: fatal error: Killed signal terminated program cc1plus')",
        "raise RuntimeError(\"nvcc error : 'cicc' died due to signal 9 (Kill signal)\")",
        "raise OSError(12, 'Cannot allocate memory')",
        "import ctypes, pathlib, tempfile; half = pathlib.Path(tempfile.mkdtemp(), 'half.so');"
        " half.write_bytes(b'\\x7fELF'); ctypes.CDLL(str(half))",
    ],
)
def test_a_compiler_that_the_kernel_kills_for_memory_is_oom_wherever_the_message_says_so(process, code):
    assert process.call(20, exec, code).status is Status.OOM


def test_the_kernels_memory_killer_is_oom(process):
    reply = process.call(20, os.kill, process.call(20, os.getpid).value, signal.SIGKILL)
    assert reply.status is Status.OOM


def test_a_memory_limit_holds(start):
    limited = start(IsolatedProcess, limits=Limits(memory_bytes=2**30))
    sizes = [limited.call(20, bytearray, size).status for size in (2**20, 2**31, 2**20)]
    assert sizes == [Status.OK, Status.OOM, Status.OK]


def test_a_hang_is_ended_in_time(process):
    pid = process.call(20, os.getpid).value
    start = time.monotonic()
    reply = process.call(0.5, time.sleep, 60)
    assert reply.status is Status.TIMEOUT
    assert time.monotonic() - start < 30
    assert not _alive(pid)
    assert process.call(20, os.getpid).status is Status.OK


def test_a_process_that_ignores_sigterm_is_killed(process):
    pid = process.call(20, os.getpid).value
    assert process.call(20, exec, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)").status is Status.OK
    assert process.call(0.5, time.sleep, 60).status is Status.TIMEOUT
    assert not _alive(pid)


CHILD = "import subprocess, builtins; builtins.c = subprocess.Popen(['sleep', '60']).pid"


def test_children_of_a_process_end_with_it(process):
    assert process.call(20, exec, CHILD).status is Status.OK
    pid = process.call(20, eval, "c").value
    assert _alive(pid)
    process.call(0.3, time.sleep, 60)
    assert _ends(pid)


def test_closing_ends_a_call_in_another_thread(process):
    process.call(20, os.getpid)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(process.call, 60, time.sleep, 60)
        time.sleep(0.3)
        process.close()
        with pytest.raises(Stopped):
            future.result(30)
    with pytest.raises(Stopped):
        process.call(1, os.getpid)


@contextlib.contextmanager
def parent_of(python, script, **more):
    """The process id that a script prints; at the end the process that runs it is killed, and the id's ends too."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    parent = subprocess.Popen([python, "-c", script], text=True, **pipes, **more)
    pid = int(parent.stdout.readline())
    yield pid
    assert _alive(pid)
    parent.kill()
    parent.wait()
    assert _ends(pid)


IMPORTS = (
    "import os, time; from gemmdb.processes.fork_server import ForkServer; "
    "from gemmdb.processes.pool import IsolatedProcess; "
)


def test_a_process_ends_with_its_parent(python):
    script = "w = IsolatedProcess(); print(w.call(20, os.getpid).value, flush=True); w.call(60, time.sleep, 60)"
    with parent_of(python, IMPORTS + script):
        pass


@pytest.mark.parametrize("last", ["w.call(60, time.sleep, 60)", "input()"], ids=["busy", "idle"])
@pytest.mark.parametrize("server", ["", "server=ForkServer()"], ids=["fresh", "forked"])
def test_what_a_process_started_ends_with_its_parent_too(python, server, last):
    """A compiler that hangs would run for ever."""
    script = f"w = IsolatedProcess({server}); w.call(20, exec, {CHILD!r}); "
    with parent_of(python, f"{IMPORTS}{script}print(w.call(20, eval, 'c').value, flush=True); {last}"):
        pass


@pytest.mark.parametrize(("deaths", "starts"), [(2, True), (3, False)])
def test_a_process_that_is_killed_while_it_starts_is_started_again(tmp_path, start, deaths, starts):
    die = f"import os, pathlib; p = pathlib.Path({str(tmp_path / 'n')!r}); p.open('a').write('x')"
    first = Task(exec, (f"{die}\nif len(p.read_text()) <= {deaths}: os.kill(os.getpid(), 9)",))
    process = start(IsolatedProcess, first=first)
    if starts:
        assert process.call(20, os.getpid).status is Status.OK
        return
    with pytest.raises(GemmdbError, match="does not start: oom"):
        process.call(20, os.getpid)


def test_the_first_task_of_each_new_process_comes_before_all_others(start):
    assert start(IsolatedProcess, first=Task(os.chdir, ("/",))).call(20, os.getcwd).value == "/"
    with pytest.raises(GemmdbError, match="does not start: error: FileNotFoundError"):
        start(IsolatedProcess, first=Task(os.chdir, ("/no/such/folder",))).call(20, os.getcwd)


def test_what_a_task_prints_does_not_disturb_the_replies(process):
    assert process.call(20, print, "to standard output").status is Status.OK
    assert process.call(20, os.getpid).status is Status.OK


def test_many_tasks_on_several_processes(start):
    processes = [start(IsolatedProcess), start(IsolatedProcess)]
    replies = spread(processes, 20, [Task(abs, (-n,)) for n in range(20)])
    assert [reply.value for reply in replies] == list(range(20))


def test_the_environment_is_the_workers_own(start):
    assert start(IsolatedProcess, {"GEMMDB_TEST": "here"}).call(20, os.getenv, "GEMMDB_TEST").value == "here"
    assert "GEMMDB_TEST" not in os.environ


def _ends(pid: int) -> bool:
    """Whether the process ends within five seconds: a signal is delivered some time after it was sent."""
    for _ in range(100):
        if not _alive(pid):
            return True
        time.sleep(0.05)
    return False


def _alive(pid):
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def copies(start):
    """A ForkServer, and two processes that it starts."""
    if not FORKS:
        pytest.skip("only Linux forks after imports")
    server = start(ForkServer, {"OF_THE_SERVER": "yes"}, ("colorsys", "gemmdb.no_such_module"))
    return server, start(IsolatedProcess, server=server), start(IsolatedProcess, server=server)


def test_copies_have_the_imports_and_the_environment_of_their_server(copies):
    _, one, two = copies
    assert one.call(20, eval, "'colorsys' in __import__('sys').modules").value is True
    assert two.call(20, os.getenv, "OF_THE_SERVER").value == "yes"
    assert one.call(20, os.getpid).value != two.call(20, os.getpid).value
    assert one.call(20, os.getsid, 0).value == one.pid
    assert one.call(20, gc.isenabled).value is True
    assert one.call(20, gc.get_freeze_count).value > 1000, "what was imported is not collected"


def test_copies_outlive_their_server_and_the_next_copy_starts_another(copies):
    _, one, two = copies
    first = one.call(20, os.getpid).value
    os.kill(one.call(20, os.getppid).value, signal.SIGKILL)
    assert one.call(20, os.getpid).value == first
    assert two.call(20, os.getpid).status is Status.OK
    one.end()
    assert one.call(20, os.getpid).value != first


def test_a_copy_that_ends_after_its_server_was_killed_may_have_been_killed_too(copies):
    _, process, _ = copies
    os.kill(process.call(20, os.getppid).value, signal.SIGKILL)
    assert process.call(20, os._exit, 3).status is Status.OOM


def test_a_server_that_ends_before_it_forks_is_started_again(copies):
    """It was killed, and the system does not say so yet: what is sent to it is lost."""
    server, one, two = copies
    os.kill(one.call(20, os.getppid).value, signal.SIGSTOP)  # It forks nothing while it is stopped.
    threading.Timer(0.5, server._process.kill).start()
    assert two.call(20, os.getpid).status is Status.OK


def test_a_server_that_closed_its_socket_and_still_seems_to_run_is_started_again(copies):
    server, one, two = copies
    before = one.call(20, os.getppid).value
    os.kill(before, signal.SIGSTOP)
    threading.Timer(0.5, server._process.kill).start()
    server._socket.shutdown(socket.SHUT_RDWR)
    assert two.call(20, os.getppid).value != before


@pytest.mark.skipif(not FORKS, reason="only Linux forks after imports")
def test_a_server_ends_with_its_parent_while_it_imports(python, tmp_path):
    (tmp_path / "long_import.py").write_text("import time\nfor _ in range(600): time.sleep(0.1)")
    script = "server = ForkServer(modules=('long_import',)); server._running(); "
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with parent_of(python, f"{IMPORTS}{script}print(server._process.pid, flush=True); input()", env=environ):
        time.sleep(0.5)


def test_no_descriptor_is_left_open(copies):
    _, process, _ = copies
    process.call(20, os.getpid)
    process.end()
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    for _ in range(3):
        assert len(process.call(20, os.listdir, "/proc/self/fd").value) < 10
        process.call(20, os.abort)
    process.end()
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before
