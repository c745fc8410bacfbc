# What cpack makes of the installed components: with -G DEB the Debian packages libkvq1, libkvq-dev and kvq-tools, with
# -G TGZ one archive. scripts/package.sh configures builds for both.

set(KVQ_MAINTAINER "The kvq authors <kvq@localhost>" CACHE STRING "Maintainer that Debian packages name")
set(kvq_debian_release 1)
set(kvq_debian_version "${PROJECT_VERSION}-${kvq_debian_release}")

set(CPACK_PACKAGE_NAME kvq)
set(CPACK_PACKAGE_VENDOR kvq)
set(CPACK_PACKAGE_CONTACT "${KVQ_MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" kvq_system)
set(CPACK_PACKAGE_FILE_NAME "kvq-${PROJECT_VERSION}-${kvq_system}")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${kvq_debian_release})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64") # or it would be this machine's
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}" ${CUDAToolkit_LIBRARY_DIR})
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/debian_docs.cmake")

set(kvq_about "libkvq keeps the keys and values of attention in 1 to 16 bits per scalar and
computes attention on them without expanding them. It also runs linear layers
on weights of 1 to 8 bits.")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME "libkvq${PROJECT_VERSION_MAJOR}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "${kvq_about}

This package has the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkvq-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libkvq${PROJECT_VERSION_MAJOR} (= ${kvq_debian_version})")
if(NOT KVQ_BUNDLED)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libyaml-dev") # of libkvq.a
endif()
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "${kvq_about}

This package has the C header, the static library, files for pkg-config and
CMake, sample programs and commented policies.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME kvq-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libkvq${PROJECT_VERSION_MAJOR} (= ${kvq_debian_version})")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "The program kvq runs and measures language models on compressed caches,
trains codebooks and quantizes weights. A small model for its demonstration
is included.")

# Which version each function came with, by the nodes of the linker's map; what may change between minor versions ties
# programs to this very version.
file(STRINGS "${PROJECT_SOURCE_DIR}/src/kvq.map" kvq_map)
set(kvq_symbols "libkvq.so.${PROJECT_VERSION_MAJOR} libkvq${PROJECT_VERSION_MAJOR} #MINVER#
| libkvq${PROJECT_VERSION_MAJOR} (= ${kvq_debian_version})
* Build-Depends-Package: libkvq-dev
")
foreach(line IN LISTS kvq_map)
  if(line MATCHES "^(KVQ_([0-9.]+)) {$")
    set(node ${CMAKE_MATCH_1})
    set(since ${CMAKE_MATCH_2}.0)
  elseif(line MATCHES "^(KVQ_EXPERIMENTAL) {$")
    set(node ${CMAKE_MATCH_1})
    set(since "${PROJECT_VERSION} 1")
  elseif(line MATCHES "^ +([a-z0-9_]+);$")
    string(APPEND kvq_symbols " ${CMAKE_MATCH_1}@${node} ${since}\n")
    continue()
  else()
    continue()
  endif()
  string(APPEND kvq_symbols " ${node}@${node} ${since}\n")
endforeach()
set(kvq_control "${PROJECT_BINARY_DIR}/debian")
file(WRITE "${kvq_control}/symbols" "${kvq_symbols}")
file(WRITE "${kvq_control}/shlibs"
  "libkvq ${PROJECT_VERSION_MAJOR} libkvq${PROJECT_VERSION_MAJOR} (>= ${PROJECT_VERSION})\n")
file(WRITE "${kvq_control}/triggers" "activate-noawait ldconfig\n")
foreach(script IN ITEMS postinst postrm) # or cpack would write some that call ldconfig
  file(WRITE "${kvq_control}/${script}" "#!/bin/sh\n# ldconfig runs by the trigger.\nset -e\n")
endforeach()
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${kvq_control}/symbols" "${kvq_control}/shlibs" "${kvq_control}/triggers"
  "${kvq_control}/postinst" "${kvq_control}/postrm")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kvq.map")

# For debian_docs.cmake.
set(CPACK_KVQ_SOURCE_DIR "${PROJECT_SOURCE_DIR}")
set(CPACK_KVQ_DEBIAN_VERSION "${kvq_debian_version}")

include(CPack)
foreach(component IN ITEMS runtime development samples program models)
  if(component MATCHES "program|models")
    set(group tools)
  elseif(component STREQUAL "runtime")
    set(group runtime)
  else()
    set(group development)
  endif()
  cpack_add_component(${component} GROUP ${group})
endforeach()
