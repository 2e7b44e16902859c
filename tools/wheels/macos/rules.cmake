# How zig archives and links. `zig c++` would link its own libc++ statically, and an exception thrown by libmlx would
# not match our catch; `zig cc` leaves libc++ to the stub. nanobind's list of interpreter symbols is a response file
# that zig refuses: symbols that no library has are looked up at load time, and check_macho.py names those allowed.
set(CMAKE_SHARED_LIBRARY_RUNTIME_CXX_FLAG "-Wl,-rpath,")
set(CMAKE_SHARED_LIBRARY_RUNTIME_C_FLAG "-Wl,-rpath,")
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qcD <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar qD <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib -D <TARGET>")
set(link_flags
    "-shared -s -Wl,-dead_strip -Wl,-undefined,dynamic_lookup -Wl,-headerpad_max_install_names")
set(CMAKE_CXX_CREATE_SHARED_MODULE
    "<CMAKE_AR> cc -target aarch64-macos.14.0 ${link_flags} -Wl,-install_name,@rpath/_core.so -o <TARGET> <OBJECTS> <LINK_LIBRARIES> -L$ENV{QWENMTP_STUBS} -lcxxsystem"
)
