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

  # A compiler cache. It takes dependencies from the compiler instead of running the preprocessor first, so that a cold build
  # takes no longer, and paths below the source tree as relative, so that other copies of the tree share what is kept.
  find_program(KVQ_CCACHE ccache)
  mark_as_advanced(KVQ_CCACHE)
  if(KVQ_CCACHE)
    foreach(language IN ITEMS C CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
          CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1 "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${KVQ_CCACHE}")
      endif()
    endforeach()
  endif()
endif()

# For older Linux systems than the one that compiles: objects stay what they are.
set(KVQ_GLIBC "" CACHE STRING "Version of glibc, for example 2.28, to link for (needs the package ziglang of python3)")
if(KVQ_GLIBC)
  set(link "${CMAKE_CURRENT_LIST_DIR}/older_glibc/link.sh ${KVQ_GLIBC} <CMAKE_CXX_COMPILER>")
  set(CMAKE_CXX_CREATE_SHARED_LIBRARY
    "${link} -shared <LINK_FLAGS> -Wl,-soname,<TARGET_SONAME> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>")
  set(CMAKE_CXX_LINK_EXECUTABLE "${link} <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
endif()

# Build trees can be moved, and the installed program finds the installed library wherever the prefix is.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
file(RELATIVE_PATH kvq_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")

# Link to these from every target of this project, PRIVATE.
add_library(kvq_compile_options INTERFACE)
target_compile_definitions(kvq_compile_options INTERFACE KVQ_EXPERIMENTAL)
if(MINGW)
  # C's printf as C99 has it. Vectors are moved as if they were not aligned, because GCC aligns Windows' stacks to 16 bytes
  # only (GCC PR 54412); Debian's GCC does so itself.
  target_compile_definitions(kvq_compile_options INTERFACE __USE_MINGW_ANSI_STDIO=1)
  target_compile_options(kvq_compile_options INTERFACE -Wa,-muse-unaligned-vector-move)
endif()
set(kvq_warnings -Wall -Wextra -Wconversion -Wshadow -Wpedantic)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND kvq_warnings -Wreserved-identifier)
endif()
if(MINGW) # isinf of its math.h
  list(APPEND kvq_warnings -Wno-float-conversion)
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

# The kind of system: windows, emscripten (a browser or Node.js) or posix, which is all others.
set(kvq_system posix)
if(WIN32)
  set(kvq_system windows)
elseif(EMSCRIPTEN)
  set(kvq_system emscripten)
endif()

# kvq_keep_own_system(LIST): of sources called system_KIND.cpp, which are there for what systems do differently, those of this
# system.
function(kvq_keep_own_system list)
  set(kept "")
  foreach(source IN LISTS ${list})
    if(NOT source MATCHES "/system_[^/]*\\.cpp$" OR source MATCHES "/system_${kvq_system}\\.cpp$")
      list(APPEND kept "${source}")
    endif()
  endforeach()
  set(${list} "${kept}" PARENT_SCOPE)
endfunction()

# kvq_unite(TARGET): call it after the target has all its sources. Headers take most sources longer than what they say
# themselves, so eight sources are compiled as one, but for those with SKIP_UNITY_BUILD_INCLUSION. Names in anonymous
# namespaces are therefore their target's own. CMake's UNITY_BUILD would do but for absolute paths in what it writes, with
# which a compiler cache finds nothing in another copy of the tree.
option(KVQ_UNITY "Compile several sources at once" ON)
function(kvq_unite target)
  if(NOT KVQ_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  file(REAL_PATH "${CMAKE_CURRENT_BINARY_DIR}/united" folder) # a compiler does not take .. for the other side of a link
  set(alone "")
  set(together "")
  list(FILTER sources EXCLUDE REGEX "/united/") # which a build in the source tree finds
  foreach(source IN LISTS sources)
    get_source_file_property(skip "${source}" SKIP_UNITY_BUILD_INCLUSION)
    if(skip OR NOT source MATCHES "\\.cpp$")
      list(APPEND alone "${source}")
    else()
      list(APPEND together "${source}")
    endif()
  endforeach()
  set(number 0)
  while(together)
    set(text "")
    foreach(i RANGE 1 8)
      list(POP_FRONT together source)
      if(source)
        file(REAL_PATH "${source}" source)
        file(RELATIVE_PATH source "${folder}" "${source}")
        string(APPEND text "#include \"${source}\"\n")
      endif()
    endforeach()
    file(CONFIGURE OUTPUT "${folder}/${target}_${number}.cpp" CONTENT "${text}" @ONLY) # which leaves it alone if nothing changes
    list(APPEND alone "${folder}/${target}_${number}.cpp")
    math(EXPR number "${number} + 1")
  endwhile()
  set_target_properties(${target} PROPERTIES SOURCES "${alone}")
endfunction()

# kvq_define_places(SOURCE DEFINITION...): absolute paths, for one source alone, since a compiler cache finds nothing that was
# compiled with another folder's.
function(kvq_define_places source)
  set_source_files_properties("${CMAKE_CURRENT_SOURCE_DIR}/${source}" PROPERTIES
    COMPILE_DEFINITIONS "${ARGN}" SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
