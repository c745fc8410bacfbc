#!/usr/bin/env bash
# Runs a program for Windows that GCC has compiled: wine.sh PROGRAM [ARGUMENT...]
set -euo pipefail

# Where Debian has the runtimes of C++ and of threads
runtimes=$(dirname "$(x86_64-w64-mingw32-g++-posix -print-file-name=libstdc++-6.dll)")
threads=$(dirname "$(x86_64-w64-mingw32-g++-posix -print-file-name=libwinpthread-1.dll)")
export WINEPATH=${WINEPATH-$runtimes;$threads} WINEDEBUG=-all
# Wine's idea of a disk, not the one of its user
export WINEPREFIX=${WINEPREFIX:-$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")/build/wine}
wine=$(command -v wine64 || command -v wine || echo /usr/lib/wine/wine64) # Debian's wine64 alone is not on the path
mkdir -p "$(dirname "$WINEPREFIX")"
# Temporary files in memory: on a disk, Wine takes milliseconds to write and remove one, which some tests do ten thousand times.
if mkdir "$WINEPREFIX" 2>/dev/null && [ -w /dev/shm ]; then
  for name in TMP TEMP; do "$wine" reg add 'HKCU\Environment' /v $name /d 'Z:\dev\shm' /f >&2; done
fi
exec "$wine" "$@"
