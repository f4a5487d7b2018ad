//! Links dsec-init as what the kernel can start by itself: no start files, no C library, no dynamic linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=none",
    ] {
        println!("cargo:rustc-link-arg-bin=dsec-init={argument}");
    }
}
