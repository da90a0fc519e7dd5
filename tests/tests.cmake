# Every tests/<label>/**/test_*.c is one test program; the label is the first folder below tests/. A file that has
# "MC_TEST_THREADS" in it also runs under TSan (label "threads"). Exit 77 = skipped.
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
file(GLOB_RECURSE MC_TEST_HELPERS CONFIGURE_DEPENDS tests/support/*.c)
add_library(mooncake_test_support STATIC ${MC_TEST_HELPERS})
target_include_directories(mooncake_test_support PUBLIC tests)
# Upstream's C interfaces are libraries of their own for users, and part of the program in tests.
add_library(mooncake_abi_static STATIC ${MC_ABI_transfer_engine} ${MC_ABI_mooncake_store})
target_link_libraries(mooncake_abi_static PUBLIC mooncake_static)
target_link_libraries(mooncake_test_support PUBLIC mooncake_cmd mooncake_abi_static mooncake_static PkgConfig::CMOCKA)

# Vendors' libraries that are not here, as far as the engine calls them; tests load them by path.
add_library(standin_cuda SHARED tests/standins/cuda.c)
target_include_directories(standin_cuda PRIVATE tests)
target_compile_options(standin_cuda PRIVATE -O2)
target_link_options(standin_cuda PRIVATE -Wl,-soname,libcuda.so.1)
set_target_properties(standin_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/standins NO_SONAME ON)
target_compile_definitions(mooncake_test_support PUBLIC MC_STANDIN_CUDA="${CMAKE_BINARY_DIR}/tests/standins/libstandin_cuda.so")
add_dependencies(mooncake_test_support standin_cuda)
if(TARGET transport_fabric AND NOT MC_SANITIZE) # a sanitizer's library must be the first
  add_library(standin_fabric_keys SHARED tests/standins/fabric_keys.c)
  target_link_libraries(standin_fabric_keys PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(standin_fabric_keys PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/standins NO_SONAME ON)
endif()

file(GLOB_RECURSE MC_TESTS_FOUND CONFIGURE_DEPENDS tests/*/test_*.c)
# Other .c files of tests/<label>/ are what the label's tests share.
function(mc_link_label_helpers test label)
  file(GLOB_RECURSE helpers CONFIGURE_DEPENDS tests/${label}/*.c)
  list(FILTER helpers EXCLUDE REGEX "/test_[^/]*\\.c$")
  if(NOT helpers)
    return()
  endif()
  if(NOT TARGET mooncake_test_${label})
    if(NOT label STREQUAL sim)
      add_library(mooncake_test_${label} STATIC ${helpers})
    else() # thousands of small masters: an index of 8 shards instead of 1024, and small stripes
      # No archive: what stands in for libc's calls is also needed by what comes later on the linker's line.
      add_library(mooncake_test_sim OBJECT ${helpers})
      file(GLOB resized CONFIGURE_DEPENDS src/master/*.c src/client/ops*.c)
      add_library(mooncake_sim_resized OBJECT ${resized})
      target_compile_definitions(mooncake_sim_resized PRIVATE MC_SHARD_BITS=3u MC_HEAT_BITS=8u)
      foreach(target mooncake_sim_resized mooncake_test_sim)
        target_compile_definitions(${target} PRIVATE MW_STRIPE_UNIT=128ull MW_STRIPE_LEAST=256ull)
      endforeach()
      target_link_libraries(mooncake_sim_resized PRIVATE mooncake_static)
      target_link_libraries(mooncake_test_sim PUBLIC $<TARGET_OBJECTS:mooncake_sim_resized>)
      # The simulated disk stands below libc: tests/sim/disk.h.
      foreach(call open64 close read write writev pread64 pwrite64 ftruncate64 fallocate64 fsync fdatasync
              sync_file_range stat64 fstat64 statvfs64 opendir readdir64 closedir mkdir rmdir rename unlink access flock
              fsetxattr fgetxattr io_uring_queue_init ioctl)
        target_link_options(mooncake_test_sim PUBLIC -Wl,--wrap=${call})
      endforeach()
      target_link_options(mooncake_test_sim PUBLIC -Wl,--wrap=mc_hot_get,--wrap=mc_hot_offer)
    endif()
    target_link_libraries(mooncake_test_${label} PUBLIC mooncake_test_support)
  endif()
  target_link_libraries(${test} PRIVATE mooncake_test_${label})
endfunction()

foreach(source ${MC_TESTS_FOUND})
  file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR}/tests ${source})
  string(REGEX REPLACE "/.*" "" label ${relative})
  string(REGEX REPLACE "\\.c$" "" name ${relative})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${source})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE mooncake_test_support)
  mc_link_label_helpers(${name} ${label})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  file(STRINGS ${source} threaded REGEX "MC_TEST_THREADS")
  set(labels ${label})
  if(threaded)
    list(APPEND labels threads)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 TIMEOUT 900)
endforeach()

# The simulator's first 2,000 seeds are one test; the other 8,000 are parts that run beside each other.
if(NOT MC_SANITIZE)
  foreach(thousands RANGE 2 8 2)
    math(EXPR last "${thousands} + 2")
    set(name sim_test_sim_seeds_${thousands}001_to_${last}000)
    add_test(NAME ${name} COMMAND sim_test_sim --seeds ${thousands}001 ${last}000)
    set_tests_properties(${name} PROPERTIES LABELS sim SKIP_RETURN_CODE 77 TIMEOUT 900)
  endforeach()
endif()

if(NOT MC_SANITIZE)
  add_test(NAME sim_test_sim_with_ssds COMMAND sim_test_sim --ssd --seeds 1 200)
  set_tests_properties(sim_test_sim_with_ssds PROPERTIES LABELS sim SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()

# What runs inside the guest of tests/vm.
add_executable(vm_rdma tests/vm/vm_rdma.c)
set_target_properties(vm_rdma PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(vm_rdma PRIVATE mooncake_test_support)
if(TARGET transport_rdma)
  add_executable(verbs_check tests/vm/verbs_check.c)
  set_target_properties(verbs_check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(verbs_check PRIVATE PkgConfig::rdma)
endif()

# Scripts: tests/<label>/test_*.py or .sh, run with the build folder as argument.
file(GLOB_RECURSE MC_TEST_SCRIPTS CONFIGURE_DEPENDS tests/*/test_*.py tests/*/test_*.sh)
foreach(source ${MC_TEST_SCRIPTS})
  file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR}/tests ${source})
  string(REGEX REPLACE "/.*" "" label ${relative})
  string(REGEX REPLACE "\\.(py|sh)$" "" name ${relative})
  string(REPLACE "/" "_" name ${name})
  add_test(NAME ${name} COMMAND ${source} ${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${label}" SKIP_RETURN_CODE 77 TIMEOUT 1800)
  if(label STREQUAL vm) # one guest at a time, with two processors
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK guest PROCESSORS 2)
  endif()
endforeach()

# A disk that misbehaves, for LD_PRELOAD; never with a sanitizer, which would have to come first.
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/tests/libdisk_faults.so
  COMMAND ${CMAKE_C_COMPILER} -D_GNU_SOURCE -O2 -shared -fPIC -Wall -Werror
          -o ${CMAKE_BINARY_DIR}/tests/libdisk_faults.so ${CMAKE_SOURCE_DIR}/tests/preload/disk_faults.c -ldl
  DEPENDS ${CMAKE_SOURCE_DIR}/tests/preload/disk_faults.c)
add_custom_target(disk_faults ALL DEPENDS ${CMAKE_BINARY_DIR}/tests/libdisk_faults.so)

# Native calls of the Python modules that take long, for LD_PRELOAD: before every function that the modules import.
if(TARGET mooncake_store_module AND NOT MC_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(names ${CMAKE_BINARY_DIR}/tests/slow_native_names.h)
  add_custom_command(
    OUTPUT ${CMAKE_BINARY_DIR}/tests/libslow_native.so
    COMMAND ${CMAKE_NM} -D --undefined-only $<TARGET_FILE:mooncake_store_module> $<TARGET_FILE:mooncake_engine_module> > ${names}.nm
    COMMAND sed -n "s/^ *U \\(mc_[a-z0-9_]*\\)$/NATIVE(\\1)/p" ${names}.nm | sort -u > ${names}
    COMMAND ${CMAKE_C_COMPILER} -D_GNU_SOURCE -O2 -shared -fPIC -Wall -Werror -I${CMAKE_BINARY_DIR}/tests
            -o ${CMAKE_BINARY_DIR}/tests/libslow_native.so ${CMAKE_SOURCE_DIR}/tests/preload/slow_native.c -ldl
    DEPENDS ${CMAKE_SOURCE_DIR}/tests/preload/slow_native.c mooncake_store_module mooncake_engine_module VERBATIM)
  add_custom_target(slow_native ALL DEPENDS ${CMAKE_BINARY_DIR}/tests/libslow_native.so)
endif()
