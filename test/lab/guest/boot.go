package guest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
	"github.com/ironlb/ironlb/test/lab/host"
)

// booter holds the requirements of every boot.
type booter struct {
	kernel Kernel
	agent  string // the agent's program
}

func prepare(ctx context.Context, c *Config) (booter, error) {
	k, err := Prepare(ctx, c.Log)
	if err != nil {
		return booter{}, err
	}
	if c.Shares, err = sharesOf(c.Shares); err != nil {
		return booter{}, err
	}
	if c.Programs, err = sharesOf(c.Programs); err != nil {
		return booter{}, err
	}
	agent, err := buildAgent(ctx)
	return booter{k, agent}, err
}

// sharesOf returns the real paths of dirs, without those inside another.
func sharesOf(dirs []string) ([]string, error) {
	var all, out []string
	for _, d := range dirs {
		real, err := filepath.EvalSymlinks(d)
		if err != nil {
			return nil, fmt.Errorf("share a folder with the guest: %w", err)
		}
		if !filepath.IsAbs(real) || real == "/" {
			return nil, fmt.Errorf("share folder %q with the guest: it must be an absolute path, and not /", d)
		}
		all = append(all, real)
	}
	slices.Sort(all)
	for _, d := range all {
		if !slices.ContainsFunc(out, func(o string) bool { return d == o || strings.HasPrefix(d, o+"/") }) {
			out = append(out, d)
		}
	}
	return out, nil
}

// buildAgent compiles the agent, quickly with Go's build cache. It works in any folder of this module.
func buildAgent(ctx context.Context) (string, error) {
	dir, err := cacheDir("agent")
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	c := host.Cmd{
		Argv: []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "github.com/ironlb/ironlb/test/lab/agent"},
		Env:  []string{"CGO_ENABLED=0", "GOFLAGS="},
	}
	if _, err := host.Output(ctx, host.Native{}, c); err != nil {
		return "", fmt.Errorf("build the guest's agent (it needs Go, in a folder of this repository): %w", err)
	}
	return dir, nil
}

// boot starts QEMU and waits for the agent. QEMU gets only open files, so that no file is left behind, in whatever way
// this process ends.
func (b booter) boot(ctx context.Context, c Config) (*Guest, error) {
	ctx, stop := context.WithCancel(ctx)
	g := &Guest{
		Kernel: b.kernel, Accel: c.Accel, stop: stop,
		console: newTail(c.Console), exited: make(chan struct{}), lost: make(chan struct{}),
	}
	began := time.Now()
	if err := g.launch(ctx, b, c); err != nil {
		stop()
		return nil, fmt.Errorf("start the guest: %w", err)
	}
	if err := g.greet(ctx, c); err != nil {
		stop()
		g.qemu.Process.Kill()
		<-g.exited
		<-g.console.closed
		g.channel.Close()
		g.monitor.close()
		return nil, fmt.Errorf("boot the guest with %s: %w; its console's last lines:\n%s", c.Accel, err, g.console)
	}
	g.Boot = time.Since(began)
	go g.watch(ctx, c)
	c.Log.Info("guest is up", "kernel", g.Kernel.Release, "accel", g.Accel, "after", g.Boot.Round(time.Millisecond))
	return g, nil
}

func (g *Guest) launch(ctx context.Context, b booter, c Config) error {
	var files inherited
	defer files.close()
	channel, err := files.socket()
	if err != nil {
		return err
	}
	console, err := files.socket()
	if err != nil {
		channel.Close()
		return err
	}
	control, err := files.socket()
	if err != nil {
		channel.Close()
		console.Close()
		return err
	}
	g.channel, g.monitor = channel, newMonitor(control)
	argv, err := b.arguments(ctx, c, &files)
	if err == nil {
		g.qemu = exec.Command(argv[0], argv[1:]...)
		g.qemu.ExtraFiles = files
		g.qemu.Stdout, g.qemu.Stderr = g.console, g.console
		g.qemu.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		err = host.StartLasting(g.qemu)
	}
	if err != nil {
		channel.Close()
		console.Close()
		control.Close()
		return err
	}
	go g.console.copy(console)
	go func() {
		g.exit = g.qemu.Wait()
		close(g.exited)
	}()
	return nil
}

// The order of the files inherited by every guest.
const (
	channelFD = 3 + iota
	consoleFD
	monitorFD
	initrdFD
	firstTapFD
)

func (b booter) arguments(ctx context.Context, c Config, files *inherited) ([]string, error) {
	w := wire.Config{Kernel: b.kernel.Release, ModulesDir: b.kernel.Modules(), Shares: c.Shares, Programs: c.Programs}
	links := slices.Clone(c.Links)
	for i := range links {
		if links[i].MAC == "" {
			links[i].MAC = randomMAC()
		}
		w.Links = append(w.Links, wire.Link{Name: links[i].Name, MAC: links[i].MAC, Addresses: links[i].Addresses})
	}
	initrd, err := files.memory("initramfs")
	if err != nil {
		return nil, err
	}
	if err := initramfs(ctx, initrd, b.kernel, b.agent, w); err != nil {
		return nil, err
	}
	cpus := c.CPUs
	if cpus == 0 {
		cpus = defaultCPUs()
	}
	argv := []string{
		"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-m", fmt.Sprint(c.MemoryMiB), "-smp", fmt.Sprint(cpus),
		"-kernel", b.kernel.Image(), "-initrd", fmt.Sprintf("/proc/self/fd/%d", initrdFD),
		// acpi=noirq saves a second, because each ACPI interrupt link is slow to set up when emulated. A panic or an
		// oops ends QEMU at once.
		"-append", "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic mitigations=off " +
			"random.trust_cpu=on audit=0 apparmor=0 net.ifnames=0 acpi=noirq rcupdate.rcu_expedited=1",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", channelFD), "-device", "virtserialport,nr=1,chardev=agent",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", monitorFD), "-mon", "chardev=monitor,mode=control",
	}
	if c.Accel == "kvm" {
		argv = append(argv, "-accel", "kvm", "-cpu", "host")
	} else {
		argv = append(argv, "-accel", "tcg,thread=multi", "-cpu", "max")
	}
	argv = append(argv, share(wire.RootTag, "/", ",readonly=on")...)
	for i, dir := range c.Shares {
		argv = append(argv, share(wire.ShareTag(i), dir, "")...)
	}
	for i, link := range links {
		tap, err := openTap(link)
		if err != nil {
			return nil, err
		}
		*files = append(*files, tap)
		argv = append(argv, "-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", i, firstTapFD+i),
			"-device", fmt.Sprintf("virtio-net-pci,romfile=,netdev=net%d,mac=%s", i, link.MAC))
	}
	return argv, nil
}

// defaultCPUs returns this machine's processors, at least 2 and at most 4, or IRONLB_LAB_CPUS. An emulated guest next
// to other work needs far less time with one: with more, a processor that holds a lock is often not running while the
// others spin for it.
func defaultCPUs() int {
	if n, err := strconv.Atoi(os.Getenv("IRONLB_LAB_CPUS")); err == nil && n > 0 {
		return n
	}
	return max(2, min(4, runtime.NumCPU()))
}

func share(tag, dir, options string) []string {
	return []string{
		"-fsdev", fmt.Sprintf("local,id=%s,path=%s,security_model=none,multidevs=remap%s",
			tag, strings.ReplaceAll(dir, ",", ",,"), options),
		"-device", fmt.Sprintf("virtio-9p-pci,fsdev=%s,mount_tag=%s", tag, tag),
	}
}

// randomMAC returns a locally administered unicast address.
func randomMAC() string {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac)
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// inherited are files passed to QEMU, from number 3 on.
type inherited []*os.File

func (f *inherited) close() {
	for _, file := range *f {
		file.Close()
	}
}

// socket creates a connected pair, one end for QEMU.
func (f *inherited) socket() (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	*f = append(*f, os.NewFile(uintptr(fds[1]), "qemu's end"))
	mine := os.NewFile(uintptr(fds[0]), "guest")
	defer mine.Close()
	return net.FileConn(mine)
}

// memory creates a file without a name in any folder.
func (f *inherited) memory(name string) (io.Writer, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	*f = append(*f, file)
	return file, nil
}
