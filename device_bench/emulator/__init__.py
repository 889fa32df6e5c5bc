"""An emulated Android device: arm64 programs under qemu behind the real adb protocol. Its times mean nothing."""
