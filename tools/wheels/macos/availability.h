// The headers of zig's libc++ take their own library for granted. The module runs on the system's, so ask them to
// respect the deployment target: nothing newer than macOS 14's libc++.1.dylib.
#undef _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS
#define _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS 1
