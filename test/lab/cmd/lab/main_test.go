package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asLab makes the test program run as the lab command.
const asLab = "IRONLB_TEST_AS_LAB"

func TestMain(m *testing.M) {
	if os.Getenv(asLab) != "" {
		main()
		return
	}
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out: needs root and a lab")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asLab+"=1", "SHELL=/bin/sh")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// namespaces lists the namespaces of labs on this machine.
func namespaces(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "ilb") {
			names = append(names, e.Name())
		}
	}
	return names
}

// gone checks that nothing of this lab is left: no namespace, no file, no process whose arguments contain its folder.
func gone(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	name := "ilb" + strconv.Itoa(cmd.Process.Pid)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "ironlb", "lab", name)
	for _, file := range []string{dir, filepath.Join("/run/ironlb-lab", name)} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
	if left, err := filepath.Glob("/sys/fs/cgroup/*/" + name + "-*"); err != nil || len(left) > 0 {
		t.Errorf("cgroups left: %v %v", left, err)
	}
	if left := naming(t, dir); len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
	own := regexp.MustCompile("^" + name + "-")
	if left := slices.DeleteFunc(namespaces(t), func(n string) bool { return !own.MatchString(n) }); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}

// naming lists the processes whose arguments contain a folder.
func naming(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(regexp.QuoteMeta(dir) + `\b`)
	var found []string
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err == nil && named.Match(args) {
			found = append(found, string(args))
		}
	}
	return found
}

// The demonstration shows its steps in order and ends with the figures of both clients, and leaves nothing behind.
func TestDemo(t *testing.T) {
	cmd := command(t, "demo")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gone(t, cmd)
	for _, point := range []string{
		`node3 +Ready`,
		`web +LoadBalancer +203\.0\.113\.\d+ +192\.0\.2\.128 +80:`,
		`files +LoadBalancer +203\.0\.113\.\d+ +192\.0\.2\.129 +80:`,
		`192\.0\.2\.128 .*node1 .*True +Owner`,
		`192\.0\.2\.129 .*node1 .*True +Owner`,
		`node1# (ipvsadm -Ln|nft list table ip ironlb-lb)`,
		`192\.0\.2\.128`,
		`http://192\.0\.2\.128/  20 requests, 0 failed, .*web-1 \d+, web-2 \d+, web-3 \d+`,
		`http://192\.0\.2\.129/  20 requests, 0 failed, .*web-1 \d+, web-2 \d+, web-3 \d+`,
		`Cutting the power of node1, the owner, during a download from web-[23] on node[23] and new connections`,
		`node[23] now announces 192\.0\.2\.129`,
		`node[23] now announces 192\.0\.2\.128`,
		`192\.0\.2\.129 .*node[23] .*True +Owner`,
		`\] done\n`,
		`Seconds of each step`,
		`192\.0\.2\.129 +direct  one download from web-[23] on node[23]: stalled [\d.]+m?s, then went on; [\d.]+ MB before the cut, [\d.]+ MB after\n`,
		`192\.0\.2\.128 +pod     new connections: \d+ of \d+ failed, the last one opened [\d.]+m?s after the cut\n$`,
	} {
		at := regexp.MustCompile(point).FindIndex(out)
		if at == nil {
			t.Fatalf("after the points before it, the demo does not show %q:\n%s", point, out)
		}
		out = out[at[0]+1:]
	}
}

// The shell has kubectl with its plugin, Helm, and the machines' commands, and its exit removes everything.
func TestShell(t *testing.T) {
	cmd := command(t, "shell")
	cmd.Stdin = strings.NewReader(`
kubectl get nodes -o name
kubectl ironlb status 192.0.2.128
helm -n ironlb-system list
client curl -s http://192.0.2.128/ </dev/null
remote curl -s http://192.0.2.128/ </dev/null
node2 ip -br addr </dev/null
node3 sh -c 'exit 7' </dev/null; echo "status $?"
exit 3
`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the status of the shell's last command is not the lab's: %v", err)
	}
	gone(t, cmd)
	for _, want := range []string{"node/node3\n", "default/web", "\tdeployed\t", "\nweb-", "192.0.2.12/24", "status 7\n", "] done\n"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Ctrl-C removes everything created so far.
func TestInterrupt(t *testing.T) {
	cmd := command(t, "demo")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "the control plane is ready") {
	}
	if len(namespaces(t)) == 0 || len(naming(t, fmt.Sprintf("/ilb%d", cmd.Process.Pid))) == 0 {
		t.Error("a lab that starts has no namespaces or no processes: the test sees nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	io.Copy(io.Discard, out) // until it ends
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("interrupted: %v, want exit status 130", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s to remove everything", took)
	}
	gone(t, cmd)
}

func TestUsage(t *testing.T) {
	cmd := exec.Command(os.Args[0], "nonsense")
	cmd.Env = append(os.Environ(), asLab+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "use: lab demo") {
		t.Errorf("%v: %s", err, out)
	}
}
