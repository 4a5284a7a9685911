package guest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Kernel is Debian's kernel, unpacked in the user's cache.
type Kernel struct {
	Release string // as in uname -r
	Dir     string // the package's files
}

// Image is the file to boot.
func (k Kernel) Image() string { return filepath.Join(k.Dir, "vmlinux") }

// Modules is the folder of its modules.
func (k Kernel) Modules() string { return filepath.Join(k.Dir, "lib/modules", k.Release) }

// programs are the machine's programs that a guest needs, with their Debian packages.
var programs = []struct{ name, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"modprobe", "kmod"},
	{"depmod", "kmod"},
	{"apt-get", "apt"},
	{"apt-cache", "apt"},
	{"dpkg-deb", "dpkg"},
	{"xz", "xz-utils"},
}

func checkPrograms() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("prepare the guest: it is made for amd64, this machine is %s; "+
			"use a kernel with ip_vs, where no guest is needed", runtime.GOARCH)
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil {
			return fmt.Errorf("prepare the guest: program %s is missing (Debian package %s): "+
				"run `make deps`, which installs it", p.name, p.pkg)
		}
	}
	return nil
}

// cacheDir returns the named path in this user's cache.
func cacheDir(name string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("prepare the guest: find the cache folder: %w", err)
	}
	return filepath.Join(base, "ironlb", name), nil
}

// Prepare downloads and unpacks the guest's kernel unless the cache has it. Concurrent calls are safe.
func Prepare(ctx context.Context, log *slog.Logger) (Kernel, error) {
	if err := checkPrograms(); err != nil {
		return Kernel{}, err
	}
	pkg, err := kernelPackage(ctx)
	if err != nil {
		return Kernel{}, err
	}
	release := strings.TrimPrefix(pkg, "linux-image-")
	dir, err := cacheDir("guest-" + release)
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Release: release, Dir: dir}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return k, err
	}
	defer unlock()
	if _, err := os.Stat(k.Dir); err == nil {
		return k, nil
	}
	log.Info("download the guest's kernel", "package", pkg, "to", dir)
	// The lock is held, so existing content is from a killed run.
	tmp := dir + ".unpack"
	if err := os.RemoveAll(tmp); err != nil {
		return k, err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return k, err
	}
	defer os.RemoveAll(tmp)
	if err := unpack(ctx, pkg, tmp, release); err != nil {
		return k, err
	}
	return k, os.Rename(filepath.Join(tmp, "root"), k.Dir)
}

var kernelDepends = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-[0-9]\S*-amd64)$`)

// kernelPackage finds the package behind linux-image-amd64. The cloud flavour is unsuitable: it has no 9p.
func kernelPackage(ctx context.Context) (string, error) {
	const meta = "linux-image-amd64"
	out, err := output(ctx, "", "apt-cache", "depends", meta)
	if err != nil {
		return "", fmt.Errorf("find the guest's kernel: %w; run `make deps`, which reads Debian's package lists", err)
	}
	m := kernelDepends.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("find the guest's kernel: apt knows no dependency of %s: "+
			"run `make deps`, which reads Debian's package lists", meta)
	}
	return m[1], nil
}

func unpack(ctx context.Context, pkg, tmp, release string) error {
	if _, err := output(ctx, tmp, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", pkg); err != nil {
		return fmt.Errorf("download the guest's kernel: %w; if its package is gone, run `make deps`", err)
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download the guest's kernel: have %v, want one package (%v)", debs, err)
	}
	root := filepath.Join(tmp, "root")
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], root); err != nil {
		return fmt.Errorf("unpack the guest's kernel: %w", err)
	}
	if _, err := output(ctx, tmp, "depmod", "-b", root, release); err != nil {
		return fmt.Errorf("index the guest's modules: %w", err)
	}
	return uncompress(ctx, filepath.Join(root, "boot/vmlinuz-"+release), filepath.Join(root, "vmlinux"))
}

// lock takes the exclusive lock of a file, and waits for it.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	got := make(chan error, 1)
	go func() { got <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		go func() { <-got; f.Close() }()
		return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
	}
}
