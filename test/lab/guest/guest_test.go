package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/host/hosttest"
)

// holderEnv makes the test binary a process that boots a guest and waits to be killed; insideEnv marks a test that runs
// in a guest.
const (
	holderEnv = "IRONLB_TEST_GUEST_HOLDER"
	insideEnv = "IRONLB_TEST_GUEST_INSIDE"
)

func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		hold()
	}
	code := m.Run()
	if common.g != nil {
		common.g.Close()
	}
	os.Exit(code)
}

var common struct {
	sync.Once
	g     *Guest
	share string
	err   error
}

// shared returns the common guest of all tests that do not break it.
func shared(t *testing.T) *Guest {
	t.Helper()
	realBoot(t)
	common.Do(func() {
		// The package's folder serves as the share.
		if common.share, common.err = os.Getwd(); common.err == nil {
			common.g, common.err = Start(context.Background(), Config{Shares: []string{common.share}})
		}
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.g
}

func realBoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a guest, which -short leaves out")
	}
}

func own(t *testing.T, c Config) *Guest {
	t.Helper()
	realBoot(t)
	g, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func TestHost(t *testing.T) { hosttest.Suite(t, shared(t)) }

func TestRemote(t *testing.T) {
	g := shared(t)
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	hosttest.Suite(t, Remote{Socket: socket})
	t.Run("CallerGone", func(t *testing.T) { callerGone(t, g, Remote{Socket: socket}) })
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// callerGone: a command does not outlive the process that started it.
func callerGone(t *testing.T, g *Guest, r Remote) {
	p, err := r.Start(t.Context(), host.Cmd{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p.(*process).conn.Close()
	if err := p.Wait(); !errors.Is(err, ErrLost) {
		t.Errorf("have %v, want %v", err, ErrLost)
	}
	hosttest.Gone(t, g, fmt.Sprint(p.Pid()))
}

func TestKernel(t *testing.T) {
	g := shared(t)
	for _, tt := range []struct{ name, script, want string }{
		{"ipvs", `set -e; modprobe ip_vs; ipvsadm -A -t 192.0.2.1:80 -s mh; ipvsadm -Sn; ipvsadm -C`, "-A -t 192.0.2.1:80 -s mh"},
		{"nft", `set -e; nft add table ip lab; nft 'add chain ip lab post { type nat hook postrouting priority 100; }'
			nft add rule ip lab post meta l4proto tcp ct original proto-dst 80 masquerade; nft list ruleset; nft delete table ip lab`, "masquerade"},
		{"netns", `set -e; ip netns add a; ip -n a link add d0 type dummy; ip netns exec a ip -o link show d0; ip netns del a`, "d0"},
		{"qdisc", `set -e; ip link add v0 type veth peer name v1; tc qdisc add dev v0 root netem delay 1ms; tc qdisc show dev v0; ip link del v0`, "netem"},
		{"writable", `echo kept > /etc/ironlb-guest-test && cat /etc/ironlb-guest-test`, "kept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := host.Run(t.Context(), g, "sh", "-c", tt.script)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("have %q, want %q in it", out, tt.want)
			}
		})
	}
	if _, err := os.Stat("/etc/ironlb-guest-test"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the guest wrote to its root is on this machine: %v", err)
	}
}

// TestProbe runs the probe here and in a guest. A test binary created after the boot is visible in the guest.
func TestProbe(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		if err := Probe(); err != nil {
			t.Error(err)
		}
		return
	}
	g := shared(t)
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := host.Output(t.Context(), g, host.Cmd{
		Argv: []string{bin, "-test.run=^TestProbe$", "-test.v"}, Env: []string{insideEnv + "=1"},
	})
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestProbe")) {
		t.Errorf("probe in the guest: %v\n%s", err, out)
	}
	// ipvsadm is the reference for this machine.
	_, err = host.Run(t.Context(), host.Native{}, "ipvsadm", "-Sn")
	if probed := Probe(); (probed == nil) != (err == nil) {
		t.Errorf("probe here: %v; ipvsadm: %v", probed, err)
	}
}

// TestShare: a share shows this machine's current files, and the guest's writes reach them.
func TestShare(t *testing.T) {
	g := shared(t)
	dir, err := os.MkdirTemp(common.share, "testdata-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	for _, want := range []string{"first", "second, longer", "3"} {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		c := host.Cmd{Argv: []string{"sh", "-c", `cat file; echo -n " back" >> file; ls`}, Dir: dir}
		if out, err := host.Output(t.Context(), g, c); err != nil || string(out) != want+"file\n" {
			t.Errorf("guest reads %q (%v), want %q", out, err, want)
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != want+" back" {
			t.Errorf("file is %q (%v), want what the guest added too", have, err)
		}
	}
}

// TestPrograms: a folder of programs inside a share is cached and read-only in the guest.
func TestPrograms(t *testing.T) {
	realBoot(t)
	share := t.TempDir()
	programs := filepath.Join(share, "bin")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "hello"), []byte("#!/bin/sh\necho hello"), 0o755); err != nil {
		t.Fatal(err)
	}
	g := own(t, Config{Shares: []string{share}, Programs: []string{programs}})
	script := `"$0"/hello; findmnt -no FS-OPTIONS --target "$0" | grep -o loose; touch "$0"/x || touch "$1"/x`
	c := host.Cmd{Argv: []string{"sh", "-c", script, programs, share}}
	if out, err := host.Output(t.Context(), g, c); err != nil || string(out) != "hello\nloose\n" {
		t.Errorf("%q, %v, want the output of the program, a cached mount", out, err)
	}
	if _, err := os.Stat(filepath.Join(programs, "x")); !os.IsNotExist(err) {
		t.Errorf("the guest wrote to the folder of programs: %v", err)
	}
}

// TestTerminalNeeded: the command's package tests a real one.
func TestTerminalNeeded(t *testing.T) {
	g := shared(t)
	_, err := g.Start(t.Context(), host.Cmd{Argv: []string{"true"}, Stdin: strings.NewReader(""), TTY: true})
	if err == nil || !strings.Contains(err.Error(), "terminal") {
		t.Errorf("terminal without one here: have %v", err)
	}
}

// TestPanic and the tests after it lose their guest: a command in it must fail with the cause.
func TestPanic(t *testing.T) {
	g := own(t, Config{})
	_, err := host.Run(t.Context(), g, "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
	for _, want := range []string{"kernel stopped", "sysrq triggered crash"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have error %v, want %q in it", err, want)
		}
	}
	if !errors.Is(err, ErrLost) {
		t.Errorf("have %v, want %v", err, ErrLost)
	}
	if _, err := host.Run(t.Context(), g, "true"); !errors.Is(err, ErrLost) {
		t.Errorf("afterwards: have %v, want %v", err, ErrLost)
	}
}

// TestRemotePanic: another process receives the cause too.
func TestRemotePanic(t *testing.T) {
	g := own(t, Config{})
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(t.Context(), l) }()
	_, err = host.Run(t.Context(), Remote{Socket: socket}, "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("have %v, want %v with the console", err, ErrLost)
	}
	if err := <-served; !errors.Is(err, ErrLost) {
		t.Errorf("serve: have %v, want %v", err, ErrLost)
	}
	if _, err := host.Run(t.Context(), Remote{Socket: socket}, "true"); err == nil {
		t.Error("a command in the lost guest passes")
	}
}

// TestPrepareTogether: two concurrent calls with an empty cache download once.
func TestPrepareTogether(t *testing.T) {
	realBoot(t)
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			k, err := Prepare(t.Context(), log)
			if err != nil {
				t.Error(err)
			}
			for _, path := range []string{k.Image(), filepath.Join(k.Modules(), "modules.dep")} {
				if s, err := os.Stat(path); err != nil || s.Size() == 0 {
					t.Errorf("%s: %v, %v", path, s, err)
				}
			}
		})
	}
	wg.Wait()
	if n := strings.Count(logged.String(), "download"); n != 1 {
		t.Errorf("downloaded %d times:\n%s", n, &logged)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "ironlb", "*.unpack")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestHang(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, g *Guest){
		"QEMU":  func(t *testing.T, g *Guest) { g.qemu.Process.Signal(syscall.SIGSTOP) },
		"Agent": func(t *testing.T, g *Guest) { go host.Run(t.Context(), g, "sh", "-c", "kill -STOP $PPID") },
	} {
		t.Run(name, func(t *testing.T) {
			g := own(t, Config{HangLimit: 6 * time.Second})
			p, err := g.Start(t.Context(), host.Cmd{Argv: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			hang(t, g)
			began := time.Now()
			err = p.Wait()
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "did not answer") {
				t.Errorf("have %v, want %v for a hang", err, ErrLost)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("a hang was noticed after %s", took)
			}
		})
	}
}

func TestClose(t *testing.T) {
	g := own(t, Config{})
	p, err := g.Start(t.Context(), host.Cmd{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); !errors.Is(err, ErrLost) {
		t.Errorf("have %v, want %v", err, ErrLost)
	}
	hosttest.Gone(t, host.Native{}, fmt.Sprint(g.qemu.Process.Pid))
}

// TestKilledHolder: QEMU ends with the process that started it.
func TestKilledHolder(t *testing.T) {
	realBoot(t)
	pids := make(lines, 10)
	p, err := host.Native{}.Start(t.Context(), host.Cmd{
		Argv: []string{os.Args[0]}, Env: []string{holderEnv + "=1"}, Stdout: pids, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(<-pids)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	p.Wait()
	hosttest.Gone(t, host.Native{}, pid)
}

type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

func hold() {
	g, err := Start(context.Background(), Config{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(g.qemu.Process.Pid)
	g.Err()
}

func TestLink(t *testing.T) {
	if addr := os.Getenv(insideEnv); addr != "" {
		conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); err != nil || string(b) != "hello\n" {
			t.Errorf("have %q, %v", b, err)
		}
		return
	}
	realBoot(t)
	ns := fmt.Sprintf("lab-guest-%d", os.Getpid())
	bridge(t, ns)
	g := own(t, Config{Links: []Link{{
		Name: "mgmt0", NetNS: ns, Bridge: "br0", Tap: "guest0", Addresses: []string{"198.51.100.2/24", "2001:db8::2/64"},
	}}})
	for _, addr := range []string{"198.51.100.1", "2001:db8::1"} {
		l := listenIn(t, ns, net.JoinHostPort(addr, "0"))
		go func() {
			if conn, err := l.Accept(); err == nil {
				fmt.Fprintln(conn, "hello")
				conn.Close()
			}
		}()
		out, err := host.Output(t.Context(), g, host.Cmd{
			Argv: []string{os.Args[0], "-test.run=^TestLink$", "-test.v"},
			Env:  []string{insideEnv + "=" + l.Addr().String()},
		})
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestLink")) {
			t.Errorf("reach %s from the guest: %v\n%s", l.Addr(), err, out)
		}
	}
	if _, err := host.Run(t.Context(), g, "ip", "link", "show", "mgmt0"); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if out, err := host.Run(t.Context(), host.Native{}, "ip", "-n", ns, "link", "show", "guest0"); err == nil {
		t.Errorf("the guest's port is left: %s", out)
	}
}

// bridge creates a namespace with a bridge that has addresses.
func bridge(t *testing.T, ns string) {
	t.Helper()
	run := func(argv ...string) {
		t.Helper()
		if _, err := host.Run(t.Context(), host.Native{}, argv...); err != nil {
			t.Fatal(err)
		}
	}
	run("ip", "netns", "add", ns)
	t.Cleanup(func() {
		if _, err := host.Run(context.Background(), host.Native{}, "ip", "netns", "del", ns); err != nil {
			t.Error(err)
		}
	})
	run("ip", "-n", ns, "link", "add", "br0", "type", "bridge")
	run("ip", "-n", ns, "addr", "add", "198.51.100.1/24", "dev", "br0")
	run("ip", "-n", ns, "addr", "add", "2001:db8::1/64", "dev", "br0", "nodad")
	run("ip", "-n", ns, "link", "set", "br0", "up")
}

// listenIn opens a listener in a network namespace. It stays there, whichever thread serves it.
func listenIn(t *testing.T, ns, addr string) net.Listener {
	t.Helper()
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		var r result
		var h netns.NsHandle
		if h, r.err = netns.GetFromName(ns); r.err == nil {
			defer h.Close()
			if r.err = netns.Set(h); r.err == nil {
				r.l, r.err = net.Listen("tcp", addr)
			}
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.l.Close() })
	return r.l
}

func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Start(t.Context(), Config{})
	for _, want := range []string{"qemu-system-x86_64", "qemu-system-x86", "make deps"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have error %v, want %q in it", err, want)
		}
	}
}

func TestSharesOf(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	have, err := sharesOf([]string{inner, dir, dir})
	if err != nil || len(have) != 1 || have[0] != dir {
		t.Errorf("have %v, %v; want %s alone", have, err, dir)
	}
	for _, bad := range []string{"/", "relative", "/no/such/folder"} {
		if have, err := sharesOf([]string{bad}); err == nil {
			t.Errorf("share %q: have %v, want an error", bad, have)
		}
	}
}

// TestPause: a paused guest runs nothing, its clocks stop, and it resumes where it stopped.
func TestPause(t *testing.T) {
	g := own(t, Config{})
	// CLOCK_BOOTTIME, which is never behind CLOCK_MONOTONIC.
	uptime := func() time.Duration {
		out, err := host.Run(t.Context(), g, "cat", "/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		var seconds float64
		if _, err := fmt.Sscan(string(out), &seconds); err != nil {
			t.Fatal(err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	began, before := time.Now(), uptime()
	if err := g.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	const pause = 3 * time.Second
	ran := make(chan error, 1)
	go func() {
		_, err := host.Run(t.Context(), g, "true")
		ran <- err
	}()
	select {
	case err := <-ran:
		t.Errorf("a command ran in a paused guest: %v", err)
	case <-time.After(pause):
	}
	if err := g.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := uptime()
	if behind := time.Since(began) - (after - before); behind < pause-time.Second/2 {
		t.Errorf("after a pause of %s the guest's clock is behind by %s", pause, behind)
	}
	if err := <-ran; err != nil {
		t.Errorf("the command that waited: %v", err)
	}
}
