# Builds for macOS 14 on Apple silicon with the clang of the ziglang package, on any machine.
# tools/wheels/build.py sets the environment: ZIG, the unpacked macOS wheel of MLX, the folder of libc++'s stub.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER $ENV{ZIG} c++)
set(CMAKE_CXX_COMPILER_TARGET aarch64-macos.14.0)
set(CMAKE_CXX_FLAGS_INIT "-fno-sized-deallocation -include ${CMAKE_CURRENT_LIST_DIR}/availability.h")
set(CMAKE_AR $ENV{ZIG})
set(CMAKE_RANLIB $ENV{ZIG})
set(CMAKE_INSTALL_NAME_TOOL /bin/true)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_CURRENT_LIST_DIR}/rules.cmake)
set(MLX_ROOT $ENV{QWENMTP_MLX_ROOT})
