package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// The host's root is cached without revalidation, which is fast and correct for installed programs. A share is not
// cached, so that changes by the host are visible while the guest runs.
const (
	rootOptions  = "trans=virtio,version=9p2000.L,msize=512000,cache=loose"
	shareOptions = "trans=virtio,version=9p2000.L,msize=512000,cache=none,access=any"
)

// tmpDir is the folder of the guest's own temporary files: /tmp may be the host's.
const tmpDir = "/run/tmp"

var baseEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "LANG=C.UTF-8", "TMPDIR=" + tmpDir,
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// setUp switches from the initial file system to a root like the host's, under a writable layer in memory.
func setUp() error {
	if err := mountAll([]mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	}); err != nil {
		return err
	}
	b, err := os.ReadFile(wire.ConfigPath)
	if err != nil {
		return err
	}
	var c wire.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("read %s: %w", wire.ConfigPath, err)
	}
	for _, m := range c.Modules {
		if err := load(m); err != nil {
			return err
		}
	}
	if err := root(c); err != nil {
		return err
	}
	return links(c)
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}

func root(c wire.Config) error {
	mounts := []mount{
		{"tmpfs", "/layer", "tmpfs", 0, "mode=755"},
		{target: "/layer/upper"},
		{target: "/layer/work"},
		{wire.RootTag, "/host", "9p", unix.MS_RDONLY, rootOptions},
		{"overlay", "/root", "overlay", 0, "lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work"},
		{"proc", "/root/proc", "proc", 0, ""},
		{"sysfs", "/root/sys", "sysfs", 0, ""},
		{"cgroup2", "/root/sys/fs/cgroup", "cgroup2", 0, ""},
		{"devtmpfs", "/root/dev", "devtmpfs", 0, ""},
		{"devpts", "/root/dev/pts", "devpts", 0, "mode=620,ptmxmode=666"},
		{"tmpfs", "/root/dev/shm", "tmpfs", 0, "mode=1777"},
		{"tmpfs", "/root/run", "tmpfs", 0, "mode=755"},
		{"tmpfs", "/root" + tmpDir, "tmpfs", 0, "mode=1777"},
		{"/host" + c.ModulesDir, "/root/lib/modules/" + c.Kernel, "", unix.MS_BIND, ""},
	}
	for i, dir := range c.Shares {
		mounts = append(mounts, mount{wire.ShareTag(i), "/root" + dir, "9p", 0, shareOptions})
	}
	for _, dir := range c.Programs {
		mounts = append(mounts, mount{"/host" + dir, "/root" + dir, "", unix.MS_BIND, ""})
	}
	if err := mountAll(mounts); err != nil {
		return err
	}
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("make the new root the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	return os.Chdir("/")
}

// mountAll creates each target and mounts the source on it; without a source it only creates the target.
func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if m.source == "" {
			continue
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s %s on %s: %w", m.kind, m.source, m.target, err)
		}
	}
	return nil
}

// links brings up the loopback and the network cards.
func links(c wire.Config) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	for _, l := range c.Links {
		if err := card(l); err != nil {
			return fmt.Errorf("network card %s: %w", l.Name, err)
		}
	}
	return nil
}

// card brings up a network card.
func card(l wire.Link) error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(have netlink.Link) bool { return have.Attrs().HardwareAddr.String() == l.MAC })
	if i < 0 {
		return fmt.Errorf("none has the hardware address %s", l.MAC)
	}
	link := all[i]
	if err := netlink.LinkSetName(link, l.Name); err != nil {
		return fmt.Errorf("name it: %w", err)
	}
	for _, a := range l.Addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
		// No duplicate detection: an IPv6 address must work at once.
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", a, err)
		}
	}
	return netlink.LinkSetUp(link)
}
