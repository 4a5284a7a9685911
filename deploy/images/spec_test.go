package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const debianSpec = `
name: packages
description: packages only
platforms: [linux/amd64]
debian:
  release: bookworm
  packages: [{name: one, reason: the test}]
  without: [{name: two, reason: the test}]
  remove: [{path: /usr/share/x, reason: the test}]
user: "0:0"
path: /usr/bin
entrypoint: [one]
`

// Each mistake in a spec gets an error with the file and the field.
func TestSpecErrors(t *testing.T) {
	for _, c := range []struct{ spec, old, new, want string }{
		{smallSpec, "name: small", "name: Small", `name: "Small"`},
		{smallSpec, "name: small", "nam: small", `unknown field "nam"`},
		{smallSpec, `user: "65532:65532"`, "user: daemon", "user: \"daemon\": write UID:GID"},
		{smallSpec, "entrypoint: [small]", "entrypoint: []", "entrypoint: missing"},
		{smallSpec, "path: /usr/local/bin\nenv", "env", "path: missing"},
		{smallSpec, "linux/arm64", "linux/riscv64", `platforms: "linux/riscv64" is not supported`},
		{smallSpec, "platforms: [linux/amd64, linux/arm64]", "platforms: []", "platforms: missing"},
		{smallSpec, "env: [A=b]", "env: [PATH=/]", "env[0]"},
		{smallSpec, "module: ., package: .", "module: .", "programs[0]: /usr/local/bin/small: write either"},
		{smallSpec, "module: ., package: .", "file: small", "tags and ldflags apply"},
		{smallSpec, "path: /usr/local/bin/small", "path: usr/local/bin/small", "programs[0]: path: \"usr/local"},
		{smallSpec, `mode: "1777"`, `mode: "rwx"`, "directories[0].mode"},
		{smallSpec, `owner: "65532:65532"`, `owner: root`, "directories[1].owner"},
		{smallSpec, "target: usr/local/bin/small", "target: ''", "symlinks[0].target: missing"},
		{smallSpec, `content: "root:x:0:0:root:/:/sbin/nologin\n"`, "from: a, content: b", "files[0]: /etc/passwd: write either"},
		{smallSpec, `content: "root:x:0:0:root:/:/sbin/nologin\n"`, "from: a, fromModule: {module: .}", "files[0].fromModule"},
		{debianSpec, "release: bookworm", "release: 12", "release"},
		{debianSpec, "name: one, reason: the test", "name: one", "debian.packages[0].reason: missing for one"},
		{debianSpec, "name: two", "name: one", "one is listed twice"},
		{debianSpec, "name: two", "name: T+", "is not a name of a Debian package"},
		{debianSpec, "path: /usr/share/x, reason: the test", "path: /usr/share/x", "debian.remove[0].reason"},
		{debianSpec, "path: /usr/share/x", "path: '/usr/[share'", "debian.remove[0].path"},
	} {
		if !strings.Contains(c.spec, c.old) {
			t.Fatalf("the spec has no %q", c.old)
		}
		file := write(t, filepath.Join(t.TempDir(), "x.yaml"), strings.Replace(c.spec, c.old, c.new, 1))
		if _, err := readSpec(file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s -> %s: %v, want %q", c.old, c.new, err, c.want)
		}
	}
	for _, valid := range []string{smallSpec, debianSpec} {
		if _, err := readSpec(write(t, filepath.Join(t.TempDir(), "x.yaml"), valid)); err != nil {
			t.Error(err)
		}
	}
}

func productSpecs(t *testing.T) []*Spec {
	t.Helper()
	files, err := filepath.Glob("ironlb-*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v: %v", files, err)
	}
	specs, err := readSpecs(files)
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

// The Dockerfile equals the one rendered from the specs.
func TestDockerfile(t *testing.T) {
	want, err := dockerfile("../..", productSpecs(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("Dockerfile differs from the specs: run make generate")
	}
}

// The documentation has each package of the specs with its reason. Measured values are not compared.
func TestDoc(t *testing.T) {
	data, err := os.ReadFile("../../docs/reference/images.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(data), "\n## ")
	for _, s := range productSpecs(t) {
		var section string
		for _, text := range sections {
			if strings.HasPrefix(text, s.Name+"\n") {
				section = text
			}
		}
		if !strings.Contains(section, s.Description) {
			t.Errorf("docs/reference/images.md has no section for %s with its description: run make images-doc", s.Name)
			continue
		}
		if s.Debian == nil {
			continue
		}
		rows := 0
		for line := range strings.Lines(section) {
			if strings.HasSuffix(strings.TrimSpace(line), " |") && strings.Contains(line, " KiB | ") && !strings.Contains(line, "| dependency of ") {
				rows++
			}
		}
		if rows != len(s.Debian.Packages) {
			t.Errorf("%s: docs/reference/images.md lists %d packages by name, the spec %d: run make images-doc", s.Name, rows, len(s.Debian.Packages))
		}
		for _, p := range s.Debian.Packages {
			if !strings.Contains(section, "| "+p.Name+" | ") || !strings.Contains(section, " | "+p.Reason+" |\n") {
				t.Errorf("%s: docs/reference/images.md lacks package %s with its reason: run make images-doc", s.Name, p.Name)
			}
		}
		for _, p := range s.Debian.Without {
			if !strings.Contains(section, "| "+p.Name+" | "+p.Reason+" |\n") {
				t.Errorf("%s: docs/reference/images.md lacks the dependency %s that is left out: run make images-doc", s.Name, p.Name)
			}
		}
	}
}

// Specs of the lab are valid too.
func TestLabSpecs(t *testing.T) {
	files, err := filepath.Glob("../../test/lab/images/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: %v", files, err)
	}
	if _, err := readSpecs(files); err != nil {
		t.Error(err)
	}
}

// The programs of the product are stamped alike, and so print the tag and the commit of their build.
func TestVersion(t *testing.T) {
	specs := productSpecs(t)
	for _, s := range specs {
		for _, p := range s.Programs {
			if p.Ldflags != specs[0].Programs[0].Ldflags {
				t.Errorf("%s: ldflags: %s, but another program has %s", p.Path, p.Ldflags, specs[0].Programs[0].Ldflags)
			}
		}
	}
	b := programs{dir: t.TempDir(), log: &progress{w: io.Discard}}
	// A small program with the same output, quick to compile.
	p := specs[0].Programs[0]
	p.Package, p.Path = "./cmd/internal/version/testdata/program", "/program"
	build := stamp{version: "v1.2.3", commit: "0123abc"}
	file, err := b.one(t.Context(), specs[0], p, build, runtime.GOOS+"/"+runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(file).CombinedOutput()
	if got, want := string(out), "v1.2.3 (commit 0123abc)\n"; err != nil || got != want {
		t.Errorf("%s: %v, %q, want %q", file, err, got, want)
	}
}
