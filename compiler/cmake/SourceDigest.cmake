# Writes a digest of the C++ sources to OUTPUT: cmake -DROOT=.. -DOUTPUT=.. -P SourceDigest.cmake
file(GLOB_RECURSE files LIST_DIRECTORIES OFF RELATIVE ${ROOT}
  ${ROOT}/dialects/* ${ROOT}/compiler/* ${ROOT}/python/bindings/*)
list(APPEND files CMakeLists.txt runtime/alpa_runtime/version.py)
list(SORT files)
set(all)
foreach(name ${files})
  file(SHA256 ${ROOT}/${name} digest)
  string(APPEND all "${name} ${digest}\n")
endforeach()
string(SHA256 digest "${all}")
string(SUBSTRING ${digest} 0 16 digest)
file(WRITE ${OUTPUT} "#define ALPA_SOURCE_DIGEST \"${digest}\"\n")
