# Settings shared by everything in this tree. Nothing here reaches a project that uses an installed kvq.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

  find_program(KVQ_CCACHE ccache)
  mark_as_advanced(KVQ_CCACHE)
  if(KVQ_CCACHE)
    foreach(language IN ITEMS C CXX)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${KVQ_CCACHE}")
      endif()
    endforeach()
  endif()
endif()

# Build trees can be moved, and the installed program finds the installed library wherever the prefix is.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
file(RELATIVE_PATH kvq_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")

# Link to these from every target of this project, PRIVATE.
add_library(kvq_compile_options INTERFACE)
target_compile_definitions(kvq_compile_options INTERFACE KVQ_EXPERIMENTAL)
set(kvq_warnings -Wall -Wextra -Wconversion -Wshadow -Wpedantic)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND kvq_warnings -Wreserved-identifier)
endif()
if(KVQ_WERROR)
  list(APPEND kvq_warnings -Werror)
endif()
target_compile_options(kvq_compile_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${kvq_warnings}>")
# What nvcc generates for the host is not pedantic, and its headers convert and shadow.
target_compile_options(kvq_compile_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra$<$<BOOL:${KVQ_WERROR}>:,-Werror>>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${KVQ_WERROR}>>:-Werror=all-warnings>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # A false warning inside std::string (GCC PR 105651).
  target_compile_options(kvq_compile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(KVQ_SANITIZE)
  set(kvq_sanitizers -fsanitize=${KVQ_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_compile_options(kvq_compile_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${kvq_sanitizers}>")
  target_link_options(kvq_compile_options INTERFACE -fsanitize=${KVQ_SANITIZE})
endif()

# Programs in C: the library refers to the C++ part of Clang's sanitizer runtime, which Clang links to C++ only.
function(kvq_link_as_cxx_under_sanitizers target)
  if(KVQ_SANITIZE)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endfunction()

# Headers take most sources longer than what they say themselves, so eight sources are compiled at once. A compiler cache
# does better where little has changed. Names in anonymous namespaces are therefore their target's own.
option(KVQ_UNITY "Compile several sources at once where no compiler cache is used" ON)
function(kvq_unite target)
  if(KVQ_UNITY AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  endif()
endfunction()
