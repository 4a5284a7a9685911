package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/cgroup"
)

var childEnded = make(chan os.Signal, 1)

func init() { signal.Notify(childEnded, syscall.SIGCHLD) }

func waitForChild() { <-childEnded }

// step is one call in the setup of a node.
type step struct {
	what string
	do   func() error
}

// boot gives the node a name, cgroups, and mounts of its own. The nodes share the rest of the machine's file system.
func boot(name, group, dir string) error {
	mount := func(source, target, kind string, flags uintptr, data string) step {
		return step{"mount " + target, func() error { return unix.Mount(source, target, kind, flags, data) }}
	}
	mkdir := func(path string) step {
		return step{"make " + path, func() error { return os.MkdirAll(path, 0o755) }}
	}
	disk, err := diskOf(dir)
	if err != nil {
		return err
	}
	in := func(path string) string { return filepath.Join(disk, path) }
	steps := []step{
		{"make the cgroups", func() error { return cgroup.Make(group) }},
		{"join the cgroups", func() error { return cgroup.Join(group) }},
		{"set the host name", func() error { return unix.Sethostname([]byte(name)) }},
		mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		// A fresh sysfs shows the interfaces of this network namespace. It hides the cgroups, which are mounted again.
		mkdir(in("cgroup")),
		mount("/sys/fs/cgroup", in("cgroup"), "", unix.MS_BIND|unix.MS_REC, ""),
		mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		mount(in("cgroup"), "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, ""),
		mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
	}
	for _, path := range []string{"/var/lib", "/var/log"} {
		steps = append(steps, mkdir(in(path)), mount(in(path), path, "", unix.MS_BIND, ""))
	}
	// The kubelet creates the missing folder of a hostPath volume, such as /lib/modules.
	steps = append(steps, mkdir(in("usr-lib")), mkdir(in("usr-lib-work")),
		mount("overlay", "/usr/lib", "overlay", 0, fmt.Sprintf("lowerdir=/usr/lib,upperdir=%s,workdir=%s", in("usr-lib"), in("usr-lib-work"))),
		mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// diskOf returns the folder with the node's own files. In a guest, the given folder is on its host, through 9p, which
// overlayfs does not accept as a layer. The files are then copied into memory, and end with the node.
func diskOf(dir string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", dir, err)
	}
	shared := false // statfs(2) reports the host's file system in place of 9p
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		shared = shared || len(f) > 2 && f[2] == "9p" && f[1] != "/" && strings.HasPrefix(dir, f[1]+"/")
	}
	if !shared {
		return dir, nil
	}
	disk := filepath.Join("/mnt", filepath.Base(dir))
	if err := os.MkdirAll(disk, 0o755); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=755"); err != nil {
		return "", fmt.Errorf("mount a disk in memory: %w", err)
	}
	if err := os.CopyFS(disk, os.DirFS(dir)); err != nil {
		return "", fmt.Errorf("copy the files of the node: %w", err)
	}
	return disk, nil
}
