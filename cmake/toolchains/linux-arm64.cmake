# Linux on ARM64, from another Linux machine with Debian's cross compiler; scripts/setup.sh --arm64 installs what is needed.
# Libraries of that architecture are found in Debian's folders for it, headers that have none in the common ones.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Tests run in an emulator of the processor, with Debian's runtimes for it. (Those of the cross compiler are not used, with
# -L: the loader would mix both, and threads of such programs hang.)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
