// Package release tests the release of the product as a whole; deploy/images tests each part on small inputs.
package release

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironlb/ironlb/deploy"
	"github.com/ironlb/ironlb/test/deploy/chart"
	"github.com/ironlb/ironlb/test/rare"
)

const (
	version  = "v9.8.7"
	commit   = "0123456789012345678901234567890123456789"
	registry = "registry.example.test/team"
)

// TestRelease makes the release twice, with caches of its own for the second, and compares all files. The chart that it
// publishes renders to the plain manifests that it publishes.
func TestRelease(t *testing.T) {
	rare.Test(t)
	c, err := chart.Open(t.Context(), t.Output(), chart.Versions...)
	if err != nil {
		t.Fatal(err)
	}
	key := writeKey(t)
	first, second := filepath.Join(t.TempDir(), "release"), filepath.Join(t.TempDir(), "release")
	release(t, c.Root, first, key, "")
	release(t, c.Root, second, key, "-cache "+t.TempDir())
	files, others := sums(t, first), sums(t, second)
	if len(files) < 50 {
		t.Errorf("%d files, want at least 50", len(files))
	}
	for name := range others {
		if _, ok := files[name]; !ok {
			t.Errorf("%s is in the second release alone", name)
		}
	}
	for name, sum := range files {
		if others[name] != sum {
			t.Errorf("two releases differ in %s", name)
		}
	}
	t.Run("chart", func(t *testing.T) { checkChart(t, c, first) })
	t.Run("crds", func(t *testing.T) { checkCRDs(t, first) })
	t.Run("plugin", func(t *testing.T) { checkPlugin(t, first) })
}

func release(t *testing.T, root, out, key, flags string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-C", root, "release", "VERSION="+version, "COMMIT="+commit, "REGISTRY="+registry, "KEY="+key,
		"RELEASE="+out, "FLAGS="+flags)
	if printed, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, printed)
	}
}

func writeKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// sums returns the checksum of each file below a folder.
func sums(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	out := map[string][sha256.Size]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		out[name] = sha256.Sum256(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func unpack(t *testing.T, archive, to string) {
	t.Helper()
	if printed, err := exec.Command("tar", "-xzf", archive, "-C", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkChart renders the published chart, and lints it with each version of Helm.
func checkChart(t *testing.T, c *chart.Chart, out string) {
	archive := filepath.Join(out, "ironlb-"+strings.TrimPrefix(version, "v")+".tgz")
	for _, helm := range chart.Versions {
		if printed, err := c.Run(t.Context(), helm, "lint", "--strict", "--kube-version", chart.Oldest, archive); err != nil {
			t.Errorf("%v\n%s", err, printed)
		}
	}
	published := *c
	published.Root = t.TempDir()
	if err := os.MkdirAll(filepath.Dir(published.Path()), 0o755); err != nil {
		t.Fatal(err)
	}
	unpack(t, archive, filepath.Dir(published.Path()))
	readme := read(t, filepath.Join(published.Path(), "README.md"))
	template := read(t, filepath.Join(c.Path(), "README.md.tmpl")) // not in the archive
	if err := os.WriteFile(filepath.Join(published.Path(), "README.md.tmpl"), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	want, err := published.Generated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want[filepath.Join(chart.Dir, "README.md")] != readme {
		t.Error("the README of the published chart does not have its values")
	}
	delete(want, filepath.Join(chart.Dir, "README.md"))
	moved := strings.NewReplacer("deploy/ironlb.yaml", "ironlb.yaml", "deploy/uninstall.yaml", "uninstall.yaml", "localhost/ironlb/", registry+"/")
	for name, text := range want {
		got := read(t, filepath.Join(out, filepath.Base(name)))
		if diff := cmp.Diff(moved.Replace(text), got); diff != "" {
			t.Errorf("the published %s is not what the published chart renders (-rendered +published):\n%s", filepath.Base(name), diff)
		}
		if strings.Contains(got, "v0.1.0") || !strings.Contains(got, "image: "+registry+"/ironlb-speaker:"+version+"\n") {
			t.Errorf("%s has an older version, or no image of the release", filepath.Base(name))
		}
	}
	if len(want) != 2 {
		t.Errorf("%d manifests, want 2", len(want))
	}
}

func checkCRDs(t *testing.T, out string) {
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join(out, "crds.yaml"))
	for name, crd := range crds {
		if !strings.Contains(text, string(bytes.TrimSpace(crd))) {
			t.Errorf("crds.yaml lacks %s", name)
		}
	}
	if n := strings.Count(text, "\nkind: CustomResourceDefinition\n"); n != len(crds) {
		t.Errorf("crds.yaml has %d definitions, want %d", n, len(crds))
	}
}

// checkPlugin runs the plugin for this machine.
func checkPlugin(t *testing.T, out string) {
	dir := t.TempDir()
	unpack(t, filepath.Join(out, "kubectl-ironlb-linux-"+runtime.GOARCH+".tar.gz"), dir)
	printed, err := exec.Command(filepath.Join(dir, "kubectl-ironlb"), "version").CombinedOutput()
	if want := version + " (commit " + commit + ")"; err != nil || !strings.Contains(string(printed), want) {
		t.Errorf("kubectl-ironlb version: %v, %q, want %q", err, printed, want)
	}
	if license := read(t, filepath.Join(dir, "LICENSE")); !strings.Contains(license, "Apache License") {
		t.Errorf("LICENSE: %.80q", license)
	}
}
