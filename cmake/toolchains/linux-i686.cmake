# Linux on x86 with 32 bits, from another Linux machine with Debian's cross compiler; scripts/setup.sh --i686 and
# scripts/foreign_libraries.sh i686 install what is needed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)
set(CMAKE_C_COMPILER i686-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER i686-linux-gnu-g++)

# A float is a float: x87 computes with more digits, and pages would be other bytes.
set(CMAKE_C_FLAGS_INIT "-msse2 -mfpmath=sse")
set(CMAKE_CXX_FLAGS_INIT "-msse2 -mfpmath=sse")

# An x86-64 kernel runs such programs itself. What it and they load is the cross compiler's own, wherever their libraries
# come from, which a RUNPATH of a program would not say.
set(runtimes /usr/i686-linux-gnu/lib)
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-Wl,--dynamic-linker=${runtimes}/ld-linux.so.2 -Wl,-rpath,${runtimes} -Wl,--disable-new-dtags")

set(CMAKE_FIND_ROOT_PATH /usr/i686-linux-gnu "${CMAKE_CURRENT_LIST_DIR}/../../build/i686-libraries")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
