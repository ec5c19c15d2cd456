//! Names the shared library as programs that are linked with it look for it.

fn main() {
    // The number after `.so.` is that of the interface: `cenote_abi`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcenote.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
