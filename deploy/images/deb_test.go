package main

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// repository is a repository of Debian packages in a folder, read by apt as a mirror.
type repository struct {
	dir     string
	sources string
	index   strings.Builder
	changes int64
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	if testing.Short() {
		t.Skip("needs apt")
	}
	r := &repository{dir: t.TempDir()}
	r.sources = write(t, filepath.Join(r.dir, "sources.list"), "deb [trusted=yes] copy:"+r.dir+" ./\n")
	return r
}

// add builds a package from files and adds it to the repository. fields are further lines of its control file.
func (r *repository) add(t *testing.T, name, version, fields string, files map[string]string) {
	t.Helper()
	src := t.TempDir()
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: Test <test@example.test>\nInstalled-Size: 7\n%sDescription: %s of the test\n",
		name, version, runtime.GOARCH, fields, name)
	write(t, filepath.Join(src, "DEBIAN", "control"), control)
	for p, content := range files {
		file := filepath.Join(src, p)
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, file, content)
		if strings.Contains(p, "bin/") {
			if err := os.Chmod(file, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	deb := filepath.Join(r.dir, name+".deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", src, deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&r.index, "%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, name, len(data), sha256.Sum256(data))
	// apt refetches an index when its time has changed, and times have the resolution of seconds.
	index := write(t, filepath.Join(r.dir, "Packages"), r.index.String())
	r.changes++
	when := time.Unix(1000000000+r.changes, 0)
	if err := os.Chtimes(index, when, when); err != nil {
		t.Fatal(err)
	}
}

// spec writes a spec of packages for this machine's platform.
func (r *repository) spec(t *testing.T, debian string) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "packages.yaml"), fmt.Sprintf(`
name: packages
description: packages of the test
platforms: [linux/%s]
debian:
  release: bookworm
%s
user: "0:0"
path: /usr/bin
entrypoint: [one]
`, runtime.GOARCH, debian))
}

// build builds a spec and returns the error.
func (r *repository) build(t *testing.T, out, spec string) error {
	t.Helper()
	_, err := buildInto(t, t.TempDir(), out, "-sources", r.sources, spec)
	return err
}

const packageOne = `  packages: [{name: one, reason: the test}]
`

// An image has a package's files and those of its dependencies, merged into /usr, without documentation but with
// licenses, and an entry for scanners. Its digest is reproducible.
func TestPackages(t *testing.T) {
	r := newRepository(t)
	script := "#!/bin/sh\n"
	r.add(t, "one", "1:1.0-1+deb12u1", "Depends: two (>= 1), awk\nPre-Depends: three\nRecommends: four\n", map[string]string{
		"bin/one": script, "lib/one/data": "x", "usr/share/doc/one/copyright": "license", "usr/share/doc/one/README": "x",
		"usr/share/man/man1/one.1": "x", "etc/init.d/one": "x", "sbin/uno": "-> ../bin/one",
	})
	r.add(t, "two", "1.5", "Source: numbers (1.4)\n", map[string]string{"usr/bin/sh": script, "usr/lib/two/extra": "x"})
	r.add(t, "three", "3", "", map[string]string{"usr/share/three": "x"})
	r.add(t, "four", "4", "", map[string]string{"usr/share/four": "x"})
	r.add(t, "mawk", "1", "Provides: awk\n", map[string]string{"usr/bin/mawk": script})
	spec := r.spec(t, packageOne+`  without: [{name: awk, reason: the test}]
  remove: [{path: /usr/lib/*/extra, reason: the test}]`)

	outs := []string{t.TempDir(), t.TempDir()}
	for _, out := range outs {
		if err := r.build(t, out, spec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := compare(outs[0], outs[1]); err != nil {
		t.Error(err)
	}
	st, err := readState(filepath.Join(outs[0], ".packages.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(st.Packages), "[{one 7 []} {three 7 [one]} {two 7 [one]}]"; got != want {
		t.Errorf("packages %s, want %s", got, want)
	}
	s, err := readSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{apt: &apt{dir: t.TempDir(), sources: r.sources}}
	p, err := b.gather(t.Context(), s, "example.test/packages:1", s.Platforms[0])
	if err != nil {
		t.Fatal(err)
	}
	full := newTree(true)
	if _, err := unpack(t.Context(), full, s.Debian, p.packages); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, p := range full.paths() {
		if full.entries[p].kind != tar.TypeDir {
			files = append(files, p)
		}
	}
	want := []string{
		"usr/bin/one", "usr/bin/sh", "usr/lib/one/data", "usr/sbin/uno", "usr/share/doc/one/copyright", "usr/share/three",
		"var/lib/dpkg/status.d/one", "var/lib/dpkg/status.d/three", "var/lib/dpkg/status.d/two",
	}
	if !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	sbom, err := os.ReadFile(filepath.Join(outs[0], "packages-linux-"+runtime.GOARCH+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	purls := checkSPDX(t, sbom)
	if want := "pkg:deb/debian/one@1:1.0-1%2Bdeb12u1?arch=" + runtime.GOARCH; !slices.Contains(purls, want) {
		t.Errorf("no %s in %v", want, purls)
	}
	if !strings.Contains(string(sbom), "built from source package numbers 1.4") {
		t.Errorf("no source package of two in %s", sbom)
	}
}

// A file that cannot start in the image fails the build. The error names the file, its package and what is missing.
func TestClosure(t *testing.T) {
	self, err := exec.LookPath("ls") // a program that needs libraries
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]map[string]string{
		"/usr/bin/one (package one): its interpreter /bin/bash is not in the image":   {"usr/bin/one": "#!/bin/bash\n"},
		"/usr/bin/one (package one): its interpreter /usr/bin/perl is not in":         {"usr/bin/one": "#!/usr/bin/env perl\n"},
		"its library libc.so.6 is not in the image":                                   {"usr/bin/one": string(program)},
		"is not in the image: add the package libc6":                                  {"usr/bin/one": string(program)},
		"/usr/bin/one (package one): link to /usr/bin/two, which is not in the image": {"usr/bin/one": "-> /usr/bin/two"},
		"entrypoint: one is in no folder of path, /usr/bin":                           {"opt/one": "x"},
		"/usr/bin/one (package one): link to one, which is not in the image":          {"usr/bin/one": "-> one"},
	} {
		r := newRepository(t)
		r.add(t, "one", "1", "", files)
		if err := r.build(t, t.TempDir(), r.spec(t, packageOne)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestPackageErrors(t *testing.T) {
	r := newRepository(t)
	r.add(t, "one", "1", "Depends: missing\n", map[string]string{"usr/bin/one": "x"})
	r.add(t, "other", "1", "", map[string]string{"usr/bin/one": "y"})
	r.add(t, "good", "1", "", map[string]string{"usr/bin/one": "x"})
	for want, debian := range map[string]string{
		"Unable to locate package absent":                                    "  packages: [{name: absent, reason: the test}]",
		"one : Depends: missing but it is not installable":                   packageOne,
		"/usr/bin/one is in both package good and package other: remove one": "  packages: [{name: good, reason: the test}, {name: other, reason: the test}]",
		"debian.remove: no package has /usr/share/missing":                   "  packages: [{name: good, reason: the test}]\n  remove: [{path: /usr/share/missing, reason: the test}]",
	} {
		if err := r.build(t, t.TempDir(), r.spec(t, debian)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// A package that differs from the index is refused.
	write(t, filepath.Join(r.dir, "good.deb"), strings.Repeat("x", 700))
	err := r.build(t, t.TempDir(), r.spec(t, "  packages: [{name: good, reason: the test}]"))
	if err == nil || !strings.Contains(err.Error(), "download 1 Debian packages") {
		t.Errorf("%v, want a failed download", err)
	}
}

// Without a network, without signatures and without apt, the error names the cause and the fix.
func TestNoPackages(t *testing.T) {
	r := newRepository(t)
	r.add(t, "one", "1", "", map[string]string{"usr/bin/one": "x"})
	spec := r.spec(t, packageOne)
	write(t, r.sources, "deb [trusted=yes] http://127.0.0.1:1/debian ./\n")
	if err := r.build(t, t.TempDir(), spec); err == nil || !strings.Contains(err.Error(), "check the network and the sources:\ndeb [trusted=yes] http://127.0.0.1:1") {
		t.Errorf("no network: %v", err)
	}
	write(t, r.sources, "deb copy:"+r.dir+" ./\n")
	if err := r.build(t, t.TempDir(), spec); err == nil || !strings.Contains(err.Error(), "does not have a Release file") {
		t.Errorf("not signed: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := r.build(t, t.TempDir(), spec); err == nil || !strings.Contains(err.Error(), "install the packages apt and dpkg") {
		t.Errorf("no apt: %v", err)
	}
}

// Indices that were fetched once serve a later build without a network, and a new index is used when it is fetched.
func TestIndices(t *testing.T) {
	r := newRepository(t)
	r.add(t, "one", "1", "", map[string]string{"usr/bin/one": "x"})
	spec, cache, out := r.spec(t, packageOne), t.TempDir(), t.TempDir()
	run := func(args ...string) {
		t.Helper()
		if _, err := buildInto(t, cache, out, append(args, "-sources", r.sources, spec)...); err != nil {
			t.Fatal(err)
		}
	}
	run()
	first, err := readState(filepath.Join(out, ".packages.json"))
	if err != nil {
		t.Fatal(err)
	}
	r.index.Reset()
	r.add(t, "one", "2", "", map[string]string{"usr/bin/one": "y"})
	run()
	second, err := readState(filepath.Join(out, ".packages.json"))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("a new package before the index is a day old: %v, then %v", first, second)
	}
	run("-update")
	third, err := readState(filepath.Join(out, ".packages.json"))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(second) == fmt.Sprint(third) {
		t.Error("-update did not find the new package")
	}
}

// Sources derive from those of the machine, for the release of the spec.
func TestDebianSources(t *testing.T) {
	if testing.Short() {
		t.Skip("needs apt")
	}
	bin := t.TempDir()
	fake := func(lines ...string) {
		file := write(t, filepath.Join(bin, "apt-get"), "#!/bin/sh\ncat <<'EOF'\n"+strings.Join(lines, "\n")+"\nEOF\n")
		if err := os.Chmod(file, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	fake("http://a.test/debian/ trixie main Debian", "http://a.test/debian/ trixie-updates main Debian", "http://a.test/debian/ trixie-backports main Debian",
		"http://b.test/debian-security/ trixie-security main", "http://c.test/other/ stable main Other", "http://a.test/debian/ trixie contrib Debian",
		"http://d.test/node/ nodistro main")
	got, err := debianSources(t.Context(), "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	got = strings.ReplaceAll(got, "[signed-by="+debianKeyring+"] ", "")
	want := "deb http://a.test/debian bookworm main\ndeb http://a.test/debian bookworm-updates main\ndeb http://b.test/debian-security bookworm-security main\n"
	if got != want {
		t.Errorf("sources:\n%swant:\n%s", got, want)
	}
	fake("http://e.test/ubuntu/ noble main Ubuntu")
	if _, err := debianSources(t.Context(), "bookworm"); err == nil || !strings.Contains(err.Error(), "-sources FILE") {
		t.Errorf("%v", err)
	}
}
