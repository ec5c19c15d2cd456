//! Programs in C, built and run: the example, and one that does all that a caller may do wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cenote::{CreateOptions, OpenOptions, Runtime};
use tempfile::{TempDir, tempdir};

/// A folder with the shared library under the names that linkers and loaders look for.
fn library() -> TempDir {
    let folder = tempdir().unwrap();
    // Cargo puts it beside the tests.
    let built = std::env::current_exe().unwrap().with_file_name("libcenote_capi.so");
    assert!(built.is_file(), "no {}", built.display());
    for name in ["libcenote.so", "libcenote.so.0"] {
        std::os::unix::fs::symlink(&built, folder.path().join(name)).unwrap();
    }
    folder
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn good(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

/// Builds a program in C with the shared library.
fn built(library: &Path, name: &str) -> PathBuf {
    let program = library.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_XOPEN_SOURCE=700", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]);
    cc.arg("-I").arg(source("include")).arg(source(name)).arg("-o").arg(&program);
    good(cc.arg("-L").arg(library).args(["-lcenote", "-pthread"]));
    program
}

#[test]
fn the_example_lists_and_copies_in_a_pool_of_ours() {
    let (library, images) = (library(), tempdir().unwrap());
    let image = images.path().join("a.img").display().to_string();
    let runtime = Runtime::new().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 7) as u8).collect();
    let made = runtime.block_on(async {
        let options = CreateOptions::new([image]).file_bytes(64 << 20).cache_bytes(16 << 20);
        let pool = options.create(&runtime, "tank").await?;
        pool.create_filesystem("tank/home", &[]).await?;
        pool.create_volume("tank/disk", 1 << 20, &[]).await?;
        pool.filesystem("tank/home").await?.write("note", &content).await?;
        pool.export().await
    });
    made.unwrap();
    let program = built(library.path(), "examples/copy.c");
    let run = |from: &str| {
        let mut command = Command::new(&program);
        command.arg(images.path()).args(["tank/home", from, "copy"]).env("LD_LIBRARY_PATH", library.path());
        command.env("CENOTE_CACHE", images.path().join("cache.json"));
        command
    };
    let said = String::from_utf8(good(&mut run("/note")).stdout).unwrap();
    assert!(said.starts_with("filesystem tank\nvolume tank/disk\nfilesystem tank/home\n"), "{said}");
    assert!(said.contains(" note\n") && said.ends_with("copied 3000000 bytes\n"), "{said}");
    let back = runtime.block_on(async {
        let options = OpenOptions::new().search(images.path()).cache_bytes(16 << 20);
        let pool = options.open(&runtime, "tank").await?;
        let back = pool.filesystem("tank/home").await?.read("copy").await?;
        pool.export().await?;
        Ok::<_, cenote::Error>(back)
    });
    assert!(back.unwrap() == content);
    let failed = run("nothing").output().unwrap();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{said}");
    assert!(said.starts_with("copy: tank/home: nothing: "), "{said}");
}

#[test]
fn the_program_of_the_documentation_writes_its_note() {
    let (library, images) = (library(), tempdir().unwrap());
    let image = images.path().join("a.img").display().to_string();
    let runtime = Runtime::new().unwrap();
    let made = runtime.block_on(async {
        let options = CreateOptions::new([image]).file_bytes(64 << 20).cache_bytes(16 << 20);
        let pool = options.create(&runtime, "tank").await?;
        pool.create_filesystem("tank/home", &[]).await?;
        pool.export().await
    });
    made.unwrap();
    let page = std::fs::read_to_string(source("../../docs/PACKAGES.md")).unwrap();
    let (_, block) = page.split_once("```c\n").expect("the page has a program");
    let (text, _) = block.split_once("```").expect("which ends");
    let path = images.path().join("note.c");
    std::fs::write(&path, text.replace("/images", &images.path().display().to_string())).unwrap();
    let program = built(library.path(), &path.display().to_string());
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library.path()).env("CENOTE_CACHE", images.path().join("cache.json"));
    good(&mut command);
    let back = runtime.block_on(async {
        let options = OpenOptions::new().search(images.path()).cache_bytes(16 << 20);
        let pool = options.open(&runtime, "tank").await?;
        pool.filesystem("tank/home").await?.read("note").await
    });
    assert_eq!(back.unwrap(), b"water the plants\n");
}

#[test]
fn what_a_caller_does_wrong_is_an_error_and_what_it_does_right_works() {
    let (library, images) = (library(), tempdir().unwrap());
    let program = built(library.path(), "tests/border.c");
    let mut command = Command::new(program);
    command.arg(images.path()).arg(images.path().join("a.img")).env("LD_LIBRARY_PATH", library.path());
    let output = good(command.env("CENOTE_CACHE", images.path().join("cache.json")));
    assert_eq!(output.stdout, b"all as promised\n");
}

#[test]
fn the_library_shows_its_own_names_alone() {
    let library = library();
    let nm = good(Command::new("nm").args(["-D", "--defined-only"]).arg(library.path().join("libcenote.so")));
    let text = String::from_utf8(nm.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let others: Vec<_> = names.iter().filter(|name| !name.starts_with("cenote_")).collect();
    assert!(names.len() > 70 && others.is_empty(), "{others:?}");
}

#[test]
fn the_header_is_one_for_cpp_too() {
    if Command::new("c++").arg("--version").output().is_err() {
        println!("left out: there is no c++");
        return;
    }
    let folder = tempdir().unwrap();
    let program = folder.path().join("a.cpp");
    std::fs::write(&program, "#include <cenote.h>\nint main() { return cenote_abi() == CENOTE_ABI ? 0 : 1; }\n")
        .unwrap();
    let mut cpp = Command::new("c++");
    cpp.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
    good(cpp.arg(source("include")).arg(program));
}
