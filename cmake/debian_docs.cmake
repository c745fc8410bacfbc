# cpack runs this before it packs a staged tree: every Debian package has its licences and changelogs in a folder of its own.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

function(compress path)
  execute_process(COMMAND gzip -9nf "${path}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(write_compressed path content)
  file(WRITE "${path}" "${content}")
  compress("${path}")
endfunction()

file(READ "${CPACK_KVQ_SOURCE_DIR}/CHANGELOG.md" changelog)
file(READ "${CPACK_KVQ_SOURCE_DIR}/THIRD_PARTY_NOTICES" notices)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)

foreach(group IN ITEMS runtime development tools)
  string(TOUPPER "${group}" upper)
  set(package "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  set(staged "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${group}${CPACK_PACKAGING_INSTALL_PREFIX}")
  if(NOT IS_DIRECTORY "${staged}")
    continue()
  endif()
  file(REMOVE_RECURSE "${staged}/share/doc/kvq")
  set(doc "${staged}/share/doc/${package}")
  file(WRITE "${doc}/copyright" "kvq is licensed under the Apache License, Version 2.0. On Debian systems its text is in
/usr/share/common-licenses/Apache-2.0, which the notices below call LICENSE.

${notices}")
  write_compressed("${doc}/changelog" "${changelog}")
  write_compressed("${doc}/changelog.Debian" "kvq (${CPACK_KVQ_DEBIAN_VERSION}) unstable; urgency=medium

  * Built by cpack; what changed is in changelog.gz.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
  set(page "${staged}/share/man/man1/kvq.1")
  if(EXISTS "${page}")
    compress("${page}")
  endif()
endforeach()
