"""Processes whose environment is read while they run, and a C program that changes its own in odd ways.

Every child is killed and reaped by the context manager that started it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def child(argv: Sequence[str], env: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """Start `argv`, wait for its first line, and give (pid, line); it ends at the latest with the block."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"{argv[0]} ended before it was ready (status {process.wait(10)})"
        yield process.pid, line
    finally:
        process.kill()
        process.communicate()


C_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef NAMES_ENVIRON
extern char **environ;
#endif
static void show(const char *name) {
    const char *value = getenv(name);
    if (value) printf("%s=%s;", name, value);
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "changes";
    setenv("MODIFIED", "new", 1);
    setenv("ADDED", "1", 1);
    unsetenv("DELETED");
    show("KEPT"); show("MODIFIED"); show("ADDED"); show("DELETED");
#ifdef NAMES_ENVIRON
    static char *odd[] = {"A=1", "NO_EQUALS", "=nameless", "A=2", "B=", "B=2", "C=a=b", 0};
    static char *none[] = {0};
    static char *bad[] = {"A=1", (char *)16, 0};
    char **many = calloc(70001, sizeof *many), *large = malloc(1 << 20);
    int index;
    memset(large, 'x', (1 << 20) - 1);
    large[1] = '=';
    large[(1 << 20) - 1] = 0;
    if (!strcmp(mode, "odd")) environ = odd;
    if (!strcmp(mode, "empty")) environ = none;
    if (!strcmp(mode, "null")) environ = 0;
    if (!strcmp(mode, "bad_string")) environ = bad;
    if (!strcmp(mode, "bad_array")) environ = (char **)0xdead0000;
    if (!strcmp(mode, "no_address")) environ = (char **)~0ul;
    for (index = 0; index < 70000; index++) many[index] = "A=1";
    if (!strcmp(mode, "many")) environ = many;
    for (index = 0; index < 60000 && !strcmp(mode, "repeat"); index++) many[index] = large;
    if (!strcmp(mode, "repeat")) { many[60000] = 0; environ = many; }
    for (index = 0; index < 60000 && !strcmp(mode, "tails"); index++) many[index] = large + index;
    if (!strcmp(mode, "tails")) { many[60000] = 0; environ = many; }
#else
    (void)mode; (void)strlen;
#endif
    puts("");
    fflush(stdout);
    return getchar();
}
"""

GCC = shutil.which("gcc")


def compiled(folder: Path, *flags: str) -> str:
    assert GCC is not None
    source, program = folder / "program.c", folder / "program"
    source.write_text(C_SOURCE)
    subprocess.run([GCC, "-O1", *flags, "-o", program, source], check=True)
    return str(program)


C_ENV = {"KEPT": "k", "MODIFIED": "old", "DELETED": "1"}
NAMES = "-DNAMES_ENVIRON"
