//! Which kernel modules the machine needs, in the order in which they can be loaded.

/// What stage 1 cannot do without, and what it needs for other root devices. One that the kernel
/// has built in is in no module file, and is left out.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_rng",
    "virtio_blk",
    "virtiofs",
    "overlay",
    "ext4",
];

/// The files, relative to the directory of `modules.dep`, each after all that it depends on.
pub(crate) fn load_order(dependencies: &str) -> Vec<&str> {
    let mut order = Vec::new();
    for wanted in WANTED {
        let line = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(path, _)| name(path) == *wanted);
        let Some((path, needs)) = line else { continue };
        // modules.dep(5) names what has to be loaded first last.
        for file in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    order
}

/// A module's name by its file: `kernel/fs/fuse/virtiofs.ko.xz` has `virtiofs`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_all_that_it_depends_on_and_once() {
        let dependencies = "\
kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz kernel/lib/crc16.ko.xz
kernel/fs/fuse/virtiofs.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko kernel/fs/fuse/fuse.ko
kernel/fs/overlayfs/overlay.ko:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/net/other.ko:
";
        assert_eq!(
            load_order(dependencies),
            [
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/drivers/virtio/virtio.ko",
                "kernel/drivers/virtio/virtio_pci.ko",
                "kernel/fs/fuse/fuse.ko",
                "kernel/fs/fuse/virtiofs.ko",
                "kernel/fs/overlayfs/overlay.ko",
                "kernel/lib/crc16.ko.xz",
                "kernel/fs/jbd2/jbd2.ko.xz",
                "kernel/fs/ext4/ext4.ko.xz",
            ]
        );
    }

    #[test]
    fn a_dash_in_a_file_name_is_an_underscore_in_the_module_s() {
        let files = load_order("kernel/drivers/char/virtio-rng.ko:\n").len();
        assert_eq!(files, 1);
        assert_eq!(load_order(""), Vec::<&str>::new());
    }
}
