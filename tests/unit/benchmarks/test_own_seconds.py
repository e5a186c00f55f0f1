"""CPU seconds of processes that nobody waits for."""

import subprocess
import sys

from benchmarks.fleet.own_seconds import OwnSeconds
from support.waiting import block_until

_CHILD = """
import sys, time
while time.process_time() < 0.3: pass
print("worked", flush=True)
sys.stdin.read()
"""
# A parent that ignores its children's ends: the system forgets what they took.
_PARENT = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], stdin=subprocess.PIPE)
sys.stdin.readline()
child.kill()
print("killed", flush=True)
sys.stdin.read()
"""


def test_what_a_process_took_counts_although_nobody_waited_for_it() -> None:
    own = OwnSeconds()
    command = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "worked\n"
        own.look()
        seen = own.spent
        print(file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "killed\n"
        own.look()
    assert own.spent >= seen >= 0.25  # the system counts in hundredths


def test_processes_are_looked_at_while_the_block_runs() -> None:
    own = OwnSeconds()
    with own.watched(), subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE) as child:
        block_until(lambda: own.spent >= 0.25)
        child.kill()
