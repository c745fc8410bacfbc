# WebAssembly with vectors of 128 bits and without threads, by Debian's Emscripten; scripts/setup.sh --wasm and
# scripts/foreign_libraries.sh wasm install what is needed.
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
set(CMAKE_FIND_ROOT_PATH "${CMAKE_CURRENT_LIST_DIR}/../../build/wasm-libraries")
include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)

# The processor's own exceptions: those by JavaScript would make every call that may throw a slow one.
set(flags "-msimd128 -fwasm-exceptions")
set(CMAKE_C_FLAGS_INIT "${flags}")
set(CMAKE_CXX_FLAGS_INIT "${flags} -include ${CMAKE_CURRENT_LIST_DIR}/wasm32_library.h")
# Programs read files of this machine and may take as much memory as there are addresses.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-sNODERAWFS=1 -sALLOW_MEMORY_GROWTH=1 -sMAXIMUM_MEMORY=4GB -sTOTAL_STACK=1MB -sEXIT_RUNTIME=1")

# Programs that this Emscripten links take Node.js since version 18 for a browser, since it has fetch(); and it finds what it
# needs itself where Debian puts it, if Node.js is not Debian's.
set(CMAKE_CROSSCOMPILING_EMULATOR node --no-experimental-fetch)
set(CMAKE_C_LINKER_LAUNCHER "${CMAKE_COMMAND}" -E env NODE_PATH=/usr/share/nodejs)
set(CMAKE_CXX_LINKER_LAUNCHER "${CMAKE_C_LINKER_LAUNCHER}")
