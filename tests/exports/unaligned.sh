#!/usr/bin/env bash
# Objects for Windows must move vectors of AVX and AVX-512 without asking for aligned addresses, since GCC aligns its stacks to
# 16 bytes only (GCC PR 54412).
#   unaligned.sh OBJDUMP OBJECT...
set -euo pipefail

"$1" --disassemble --no-show-raw-insn "${@:2}" | awk '
  / file format / { object = $1 }
  /%[yz]mm/ { ++vectors }
  /\tvmov(aps|apd|dqa|dqa32|dqa64|ntps|ntpd|ntdq|ntdqa)[ \t].*\(/ {
    print "FAILED: " object " has" substr($0, index($0, "\t")) > "/dev/stderr"
    failed = 1
  }
  END {
    if (!vectors) print "FAILED: no object uses vectors of AVX" > "/dev/stderr"
    else if (!failed) print "ok: " vectors " instructions use vectors of AVX, none of which must be aligned"
    exit failed || !vectors
  }'
