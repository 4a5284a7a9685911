package lab

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// abandonEnv makes this test program build a cluster, print its name, and wait to be killed.
const abandonEnv = "IRONLB_LAB_TEST_ABANDON"

func abandon() {
	config := Config{Bare: true, Kernel: Native, Nodes: 1}
	if os.Getenv(abandonEnv) == "kubelets" {
		config.Kubelets = &Kubelets{SingleStack: true}
	}
	c, err := New(context.Background(), config)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv(abandonEnv) == "close" {
		fmt.Println(c.name)
		if err := c.Close(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	fmt.Println(c.name)
	select {}
}

// other runs this test program in another process and returns it and the name of its lab.
func other(t *testing.T, what string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), abandonEnv+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	name, err := bufio.NewReader(out).ReadString('\n')
	name = strings.TrimSpace(name)
	if err != nil || labName.FindString(name) != name {
		t.Fatalf("another lab: %q %v", name, err)
	}
	return cmd, name
}

// left lists the residual state of a lab: namespaces, processes, files.
func left(t *testing.T, name string) []string {
	t.Helper()
	all, err := namespaces()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, ns := range all {
		if m := labName.FindStringSubmatch(ns); m != nil && m[1] == name {
			found = append(found, "namespace "+ns)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(claims, name), filepath.Join(cache, "ironlb", "lab", name)} {
		if _, err := os.Stat(file); err == nil {
			found = append(found, "file "+file)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name + "-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		found = append(found, "cgroup "+g)
	}
	return append(found, processes(t, name)...)
}

// processes lists the processes whose arguments contain the lab's scratch folder.
func processes(t *testing.T, name string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(cmdline), "/"+name+"/") {
			found = append(found, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

func TestCloseLeavesNothing(t *testing.T) {
	cluster.Need(t)
	cmd, name := other(t, "close")
	if err := cmd.Wait(); err != nil {
		t.Errorf("close: %v", err)
	}
	if found := left(t, name); len(found) > 0 {
		t.Errorf("after Close there are left:\n%s", strings.Join(found, "\n"))
	}
}

// A killed lab's processes end with it. The next lab removes the rest, and does not touch running labs.
func TestKilledLabIsRemoved(t *testing.T) { killed(t, "stay") }

// The same holds for the containers of a node with a kubelet, in PID namespaces of their own.
func TestKilledNodesWithKubeletsAreRemoved(t *testing.T) { killed(t, "kubelets") }

func killed(t *testing.T, what string) {
	t.Helper()
	cluster.Need(t)
	cmd, name := other(t, what)
	if found := left(t, name); len(found) < 7 {
		t.Errorf("of a standing lab there is only:\n%s", strings.Join(found, "\n"))
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // it was killed
	err := cluster.Eventually(t.Context(), 10*time.Second, "the killed lab's processes to end", func(context.Context) error {
		if found := processes(t, name); len(found) > 0 {
			return fmt.Errorf("there are:\n%s", strings.Join(found, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := Collect(); err != nil {
		t.Error(err)
	}
	if found := left(t, name); len(found) > 0 {
		t.Errorf("of a killed lab there is left:\n%s", strings.Join(found, "\n"))
	}
	if found := left(t, cluster.name); len(found) < 2 {
		t.Errorf("of this lab there is only:\n%s", strings.Join(found, "\n"))
	}
}

func TestNeedsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := New(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "not root") {
			t.Errorf("lab without root: %v", err)
		}
		return
	}
	cluster.Need(t)
	// As another user, with the same program.
	exe := filepath.Join(t.TempDir(), "lab.test")
	if err := os.Link(os.Args[0], exe); err != nil {
		data, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(exe, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir := filepath.Dir(exe); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), abandonEnv+"=close")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not root") {
		t.Errorf("lab without root: %v: %s", err, out)
	}
}
