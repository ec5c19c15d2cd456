//! Read policies on modelled disks, in virtual time: what a test can afford of `cenote-lab mirror`, which has the whole tables.

#[allow(dead_code, reason = "the bench uses all of it")]
#[path = "../../../lab/src/mirror/rig.rs"]
mod rig;

use cenote_taskq::sim::model::{FlashOptions, RotatingOptions};
use cenote_vdev::tunables::Tunables;
use rig::{Model, Outcome, Rig, Work};

const FILE_BYTES: u64 = 4 << 30;

fn run(models: &[Model], policy: &str, readers: u64, seconds: f64) -> Outcome {
    let mut tunables = Tunables::default();
    tunables.set("zfs_vdev_mirror_policy", policy).unwrap();
    Rig::new(7, 1, models, &tunables).run(Work::Small, readers, FILE_BYTES, seconds)
}

/// Like drives get like shares: none is left out for what chance made it look like.
#[test]
fn like_drives_are_all_read() {
    let models = vec![Model::Rotating(RotatingOptions::desktop()); 3];
    let [offset, pending, adaptive] =
        ["offset", "pending", "adaptive"].map(|policy| run(&models, policy, 6, 20.0).per_s());
    assert!(adaptive >= 0.95 * pending, "{adaptive} against {pending}");
    assert!(adaptive >= 1.1 * offset, "{adaptive} against {offset}");
}

#[test]
fn a_solid_state_child_that_is_ten_times_slower_is_hardly_felt() {
    let fast = FlashOptions::sata();
    let healthy = run(&[Model::Flash(fast); 3], "adaptive", 12, 0.3);
    let slow = [Model::Flash(fast), Model::Flash(fast.slower(10)), Model::Flash(fast)];
    let ours = run(&slow, "adaptive", 12, 0.3);
    assert!(ours.quantile_ms(0.999) <= 1.3 * healthy.quantile_ms(0.999), "{}", ours.quantile_ms(0.999));
    assert!(ours.extra() <= 0.05, "{}", ours.extra());
    assert!(run(&slow, "pending", 12, 0.3).quantile_ms(0.999) > 5.0 * healthy.quantile_ms(0.999));
}

#[test]
fn a_drive_that_is_ten_times_slower_costs_its_share_and_no_more() {
    let drive = RotatingOptions::desktop();
    let slow = [Model::Rotating(drive), Model::Rotating(drive.slower(10)), Model::Rotating(drive)];
    let ours = run(&slow, "adaptive", 6, 20.0);
    let others = run(&[Model::Rotating(drive); 2], "adaptive", 6, 20.0);
    assert!(ours.per_s() >= 0.9 * others.per_s(), "{} against {} of the others alone", ours.per_s(), others.per_s());
    assert!(ours.extra() <= 0.05, "{}", ours.extra());
    let pending = run(&slow, "pending", 6, 20.0);
    assert!(ours.quantile_ms(0.999) * 3.0 <= pending.quantile_ms(0.999), "{}", ours.quantile_ms(0.999));
}
