use super::*;

const HYBRID_CGROUP: &str =
    "8:pids:/\n7:blkio:/\n4:memory:/outer/3f2a\n2:cpuacct:/\n1:cpu:/\n0::/\n";
const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

#[test]
fn a_hybrid_host_has_each_controller_where_it_is_mounted() {
    let layout = Layout::parse(HYBRID_CGROUP, HYBRID_MOUNTS).unwrap();
    assert_eq!(layout.hierarchy(), Hierarchy::Hybrid);
    assert_eq!(layout.available(), Controller::ALL);
    assert_eq!(layout.own_group(), Path::new("/sys/fs/cgroup/unified"));
    let Some(Home::Legacy(index)) = layout.home(Controller::Memory) else {
        panic!("memory is on version 1");
    };
    assert_eq!(
        layout.legacy[index].place.own,
        Path::new("/sys/fs/cgroup/memory/outer/3f2a")
    );
    let text = layout.to_string();
    assert!(
        text.contains("memory: version 1, /sys/fs/cgroup/memory/outer/3f2a"),
        "{text}"
    );
}

#[test]
fn controllers_mounted_together_are_one_hierarchy() {
    let layout = Layout::parse(
        "3:cpu,cpuacct,memory:/a\n0::/b\n",
        "1 0 0:1 / /cg/all rw - cgroup cgroup rw,cpu,cpuacct,memory\n2 0 0:2 / /cg/u rw - cgroup2 none rw\n",
    )
    .unwrap();
    assert_eq!(layout.legacy.len(), 1);
    assert_eq!(
        layout.legacy[0].controllers,
        [Controller::Memory, Controller::Cpu]
    );
    assert_eq!(layout.home(Controller::Pids), Some(Home::Unified));
}

#[test]
fn a_version_1_hierarchy_that_is_not_mounted_is_not_available() {
    let layout = Layout::parse(
        "5:memory:/a\n0::/\n",
        "2 0 0:2 / /cg rw - cgroup2 none rw\n",
    )
    .unwrap();
    assert_eq!(layout.available(), [Controller::Pids, Controller::Cpu]);
}

#[test]
fn a_bind_mounted_part_shows_the_own_group_below_it() {
    let cgroup = "0::/docker/abc/inner\n";
    let layout =
        Layout::parse(cgroup, "1 0 0:1 /docker/abc /cg rw - cgroup2 cgroup2 rw\n").unwrap();
    assert_eq!(layout.own_group(), Path::new("/cg/inner"));
    let exact = Layout::parse(
        "0::/docker/abc\n",
        "1 0 0:1 /docker/abc /cg rw - cgroup2 x rw\n",
    )
    .unwrap();
    assert_eq!(exact.own_group().as_os_str(), "/cg");
}

#[test]
fn a_group_outside_of_every_mount_is_an_error_and_no_guess() {
    for (cgroup, root) in [
        ("0::/docker/abcd\n", "/docker/abc"),
        ("0::/../other\n", "/"),
        ("0::/\n", "/.."),
        ("0::/\n", "/docker/abc"),
    ] {
        let mounts = format!("1 0 0:1 {root} /cg rw - cgroup2 cgroup2 rw\n");
        let found = Layout::parse(cgroup, &mounts);
        assert!(
            matches!(found, Err(Error::OwnGroupHidden { .. })),
            "{cgroup} {root}: {found:?}"
        );
    }
}

#[test]
fn writable_mounts_come_before_read_only_ones() {
    let mounts =
        "1 0 0:1 / /ro ro - cgroup2 cgroup2 rw\n2 0 0:1 / /rw\\040here rw - cgroup2 cgroup2 rw\n";
    let layout = Layout::parse("0::/a\n", mounts).unwrap();
    assert_eq!(layout.own_group(), Path::new("/rw here/a"));
    let only = Layout::parse("0::/a\n", "1 0 0:1 / /ro ro - cgroup2 cgroup2 rw\n").unwrap();
    assert!(only.unified.read_only && only.to_string().contains("read-only"));
}

#[test]
fn without_cgroup2_the_error_says_what_is_there() {
    let version_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    for (cgroup, mounts, said) in [
        ("4:memory:/\n0::/\n", version_1, "1 version 1 hierarchies"),
        (
            "4:memory:/\n",
            version_1,
            "no cgroup2 hierarchy in /proc/self/cgroup",
        ),
        ("0::/\n", "", "no control group file system"),
        ("", "", "no cgroup2 hierarchy"),
    ] {
        let text = Layout::parse(cgroup, mounts).unwrap_err().to_string();
        assert!(
            text.contains(said) && text.contains("mount -t cgroup2"),
            "{text}"
        );
    }
}

#[test]
fn the_way_up_stops_at_a_systemd_unit_and_at_the_mount() {
    let place = |mount: &str, own: &str| Place {
        mount: mount.into(),
        own: own.into(),
        read_only: false,
    };
    let in_unit = place("/cg", "/cg/user.slice/x.service/app/leaf");
    assert_eq!(
        in_unit.candidates(),
        [
            "/cg/user.slice/x.service/app/leaf",
            "/cg/user.slice/x.service/app",
            "/cg/user.slice/x.service"
        ]
        .map(Path::new)
    );
    let scope = place("/cg", "/cg/user.slice/run-1.scope");
    assert_eq!(
        scope.candidates(),
        [Path::new("/cg/user.slice/run-1.scope")]
    );
    let plain = place("/cg", "/cg/a/b");
    assert_eq!(
        plain.candidates(),
        ["/cg/a/b", "/cg/a", "/cg"].map(Path::new)
    );
}
