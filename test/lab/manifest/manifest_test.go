package manifest

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const example = `
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: a}
spec:
  template:
    spec:
      initContainers:
        - name: first
          securityContext: {privileged: true}
      containers:
        - name: root
          volumeMounts:
            - {name: x, mountPath: /x}
            - {name: y, mountPath: /y, readOnly: true}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL], add: [SYS_NICE, NET_RAW]}
        - name: open
          securityContext: {capabilities: {drop: [NET_RAW]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: b}
spec:
  template:
    spec:
      securityContext: {runAsUser: 7, runAsGroup: 8}
      containers:
        - name: user
          securityContext: {runAsUser: 65532, runAsNonRoot: true, capabilities: {drop: [ALL]}}
        - name: root2
          securityContext: {runAsUser: 0, capabilities: {drop: [ALL]}}
        - name: twice
        - name: twice
          securityContext: {capabilities: {drop: [ALL]}}
`

func folder(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := folder(t, example)
	for _, want := range []Privileges{
		{Container: "first", Privileged: true},
		{Container: "root", Capabilities: []string{"NET_RAW", "SYS_NICE"}, NoNewPrivileges: true, ReadOnlyRoot: true, Writable: []string{"/x"}},
		{Container: "user", User: 65532, Group: 8},
		{Container: "root2", Group: 8},
	} {
		got, err := Read(dir, want.Container)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", want.Container, got, err, want)
		}
	}
	for container, want := range map[string]string{"none": "0 workloads", "open": "drop has no ALL", "twice": "drop has no ALL"} {
		if _, err := Read(dir, container); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", container, err, want)
		}
	}
	more, err := os.ReadFile(filepath.Join(dir, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), more, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, "root"); err == nil || !strings.Contains(err.Error(), "2 workloads") {
		t.Errorf("a container of two workloads: %v", err)
	}
}

// The privileges of every container of deploy/ are readable.
func TestReadDeploy(t *testing.T) {
	for _, container := range []string{"ironlb-ccm", "ironlb-speaker", "ironlb-bgpd", "prepare"} {
		if _, err := Read("../../../deploy", container); err != nil {
			t.Error(err)
		}
	}
}

// The program's effective privileges are read from /proc.
func TestArgv(t *testing.T) {
	if os.Geteuid() != 0 {
		if testing.Short() {
			t.Skip("capability: root (left out in short mode)")
		}
		t.Fatal("not root: run this as root, or with -short")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a file that only root can read"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    Privileges
		want []string
	}{
		{Privileges{Capabilities: []string{"NET_ADMIN", "SYS_NICE"}, NoNewPrivileges: true},
			[]string{"Uid:\t0\t", "CapInh:\t0000000000000000", "CapEff:\t0000000000801000", "CapBnd:\t0000000000801000", "NoNewPrivs:\t1"}},
		{Privileges{User: 65532}, []string{"Uid:\t65532\t", "Groups:\t \n", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t0"}},
	} {
		argv := c.p.Argv("sh", "-c", "cat /proc/self/status; cat $0", secret)
		out, err := exec.Command("unshare", append([]string{"--mount", "--"}, argv...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
		for _, want := range append(c.want, "a file that only root can read") {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v: no %q in\n%s", argv, want, out)
			}
		}
	}
}

// A program can write to the paths that the manifest allows, and to nothing else.
func TestContained(t *testing.T) {
	if os.Geteuid() != 0 {
		if testing.Short() {
			t.Skip("capability: root (left out in short mode)")
		}
		t.Fatal("not root: run this as root, or with -short")
	}
	ours, others := t.TempDir(), t.TempDir()
	p := Privileges{ReadOnlyRoot: true, Writable: []string{"/run/x.lock"}}
	for path, want := range map[string]bool{
		filepath.Join(ours, "f"): true, "/run/x.lock": true, filepath.Join(others, "f"): false, "/proc/sys/net/ipv4/ip_forward": false,
	} {
		argv := append([]string{"unshare", "--mount", "--"}, p.Contained([]string{ours}, "sh", "-c", `[ -w "$0" ] || [ -w "${0%/*}" ] && : >> "$0"`, path)...)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if got := err == nil; got != want {
			t.Errorf("write %s: %v, want %t\n%s", path, err, want, out)
		}
	}
}
