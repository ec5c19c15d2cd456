//! Goal: pools on devices whose sectors are larger than their vdevs' are read and never written, with OpenZFS's reason; new pools
//! take sectors that devices can write. Method: loop devices with sectors of 4096 bytes, which need root; and `zdb` on what is made.

use crate::common;

use std::process::Command;

use common::images::Images;
use common::loops::Loop;

/// `cenote TOOL -d DEVICE -f ...`.
fn command(images: &Images, tool: &str, device: &Loop, rest: &[&str]) -> Command {
    let mut command = images.bare();
    command.arg(tool).arg("-d").arg(device.name()).arg("-f").args(rest);
    command
}

fn text(mut command: Command) -> String {
    String::from_utf8(common::good(&mut command)).unwrap()
}

#[test]
fn a_pool_of_ashift_9_is_read_from_sectors_of_4096_bytes_and_never_written_to() {
    let images = Images::made(&[], 1, &["-o", "ashift=9"]);
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file"), "on a disk of small sectors").unwrap();
    images.run("put", &["mine", source.path().to_str().unwrap()]);
    let before = std::fs::read(&images.files[0]).unwrap();
    let Some(device) = Loop::over(&images.files[0], Some(4096)) else { return };
    let status = text(command(&images, "zpool", &device, &["status", "mine"]));
    assert!(status.contains(" state: UNAVAIL\nstatus: One or more devices has sectors larger than"), "{status}");
    let reason = "UNAVAIL      0     0     0  cannot open: the device's required alignment (4096 bytes) is larger than the vdev's \
                  ashift 9";
    assert!(status.lines().any(|line| line.ends_with(reason)), "{status}");
    let listed = text(command(&images, "ls", &device, &["mine"]));
    assert!(listed.contains("file"), "{listed}");
    let output = command(&images, "zpool", &device, &["set", "comment=no", "mine"]).output().unwrap();
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("required alignment (4096 bytes)"),
        "{}",
        common::said(&output)
    );
    assert!(text(command(&images, "zpool", &device, &["status", "-x"])).contains("UNAVAIL"));
    drop(device);
    assert!(std::fs::read(&images.files[0]).unwrap() == before, "something was written");
    images.assert_whole();
}

#[test]
fn a_new_pool_on_sectors_of_4096_bytes_has_ashift_12_and_no_less() {
    let images = Images::none();
    let file = images.cache.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(96 << 20).unwrap();
    let Some(device) = Loop::over(&file, Some(4096)) else { return };
    let mut less = images.bare();
    less.args(["zpool", "create", "-o", "ashift=9", "mine", device.name()]);
    let output = less.output().unwrap();
    assert!(!output.status.success());
    let said = common::said(&output);
    assert!(said.contains("its sectors have 4096 bytes") && said.contains("'ashift=12' is the least"), "{said}");
    let mut create = images.bare();
    create.args(["zpool", "create", "mine", device.name()]);
    common::good(&mut create);
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file"), vec![3; 1 << 20]).unwrap();
    text(command(&images, "put", &device, &["mine", source.path().to_str().unwrap()]));
    let status = text(command(&images, "zpool", &device, &["status", "mine"]));
    assert!(status.contains(" state: ONLINE"), "{status}");
    drop(device);
    let mut judged = Images::none();
    std::fs::copy(&file, judged.dir.join("disk")).unwrap();
    judged.note_files();
    let labels = judged.bare().args(["inspect", "labels"]).arg(&judged.files[0]).output().unwrap();
    let told = String::from_utf8_lossy(&labels.stdout);
    let is_ashift = |line: &str| line.split_whitespace().eq(["ashift", "12"]);
    assert!(told.lines().any(is_ashift), "{told}");
    judged.assert_whole();
}
