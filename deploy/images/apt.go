package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// apt resolves and downloads Debian packages. It has state and cache folders of its own; nothing is installed.
type apt struct {
	dir     string // state and cache
	sources string // a file that replaces apt's configured sources; if empty, these are used
	update  bool   // refresh the package indices, whatever their age
	log     *progress

	updated map[string]bool
}

// debPackage is one package at one version, downloaded.
type debPackage struct {
	Name, Version, Arch string
	File                string // the archive
	SHA256              string
}

// indexAge is the maximum age of package indices.
const indexAge = 24 * time.Hour

var errNoApt = errors.New("apt-get, apt-cache or dpkg-deb not found: install the packages apt and dpkg, " +
	"or build on a machine with Debian or Ubuntu, or use deploy/images/Dockerfile")

// resolve returns the packages of a spec with all their dependencies, sorted by name, downloaded and verified by apt.
func (a *apt) resolve(ctx context.Context, d *Debian, arch string) ([]debPackage, error) {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, errNoApt
		}
	}
	if err := os.MkdirAll(a.root(d, arch), 0o755); err != nil {
		return nil, fmt.Errorf("make apt's folders: %w", err)
	}
	unlock, err := lock(ctx, a.log, filepath.Join(a.root(d, arch), ".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	conf, err := a.configure(ctx, d, arch)
	if err != nil {
		return nil, err
	}
	if err := a.refresh(ctx, conf, d, arch); err != nil {
		return nil, err
	}
	return a.fetch(ctx, conf, d, arch)
}

// root is the folder for one release and architecture.
func (a *apt) root(d *Debian, arch string) string { return filepath.Join(a.dir, d.Release+"-"+arch) }

// configure writes the configuration of apt and the package database, and returns the configuration's path. The
// database lists the packages that the spec leaves out: apt does not install a package that is already installed.
func (a *apt) configure(ctx context.Context, d *Debian, arch string) (string, error) {
	root := a.root(d, arch)
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "resolved"} {
		if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
			return "", fmt.Errorf("make apt's folders: %w", err)
		}
	}
	sources := a.sources
	if sources == "" {
		text, err := debianSources(ctx, d.Release)
		if err != nil {
			return "", err
		}
		sources = filepath.Join(root, "sources.list")
		if err := os.WriteFile(sources, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("write apt's sources: %w", err)
		}
	}
	sources, err := filepath.Abs(sources)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(sources); err != nil {
		return "", fmt.Errorf("apt's sources: %w", err)
	}
	var status strings.Builder
	for _, w := range d.Without {
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nVersion: 9999\nArchitecture: %s\nMulti-Arch: foreign\n"+
			"Maintainer: none <none@localhost>\nDescription: left out\n\n", w.Name, arch)
	}
	sum := sha256.Sum256([]byte(status.String()))
	statusFile := filepath.Join(root, "status-"+hex.EncodeToString(sum[:6]))
	if err := os.WriteFile(statusFile, []byte(status.String()), 0o644); err != nil {
		return "", fmt.Errorf("write apt's package database: %w", err)
	}
	conf := fmt.Sprintf(`#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear APT::Default-Release;
#clear Acquire::Languages;
APT::Architecture "%[1]s";
APT::Architectures { "%[1]s"; };
APT::Sandbox::User "";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Get::AllowUnauthenticated "false";
APT::Keep-Downloaded-Packages "true";
APT::Update::Error-Mode "any";
Acquire::Languages { "none"; };
Acquire::AllowInsecureRepositories "false";
Acquire::Retries "2";
Dir::State "%[2]s/state";
Dir::State::lists "lists";
Dir::State::status "%[3]s";
Dir::State::extended_states "%[2]s/state/extended_states";
Dir::Cache "%[2]s/cache";
Dir::Etc::sourcelist "%[4]s";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
`, arch, root, statusFile, sources)
	file := statusFile + ".conf"
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return "", fmt.Errorf("write apt's configuration: %w", err)
	}
	return file, nil
}

const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianSources derives the sources of a release from this machine's Debian sources, which may be of another release.
func debianSources(ctx context.Context, release string) (string, error) {
	out, err := run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)", "Identifier: Packages")
	if err != nil {
		return "", fmt.Errorf("list the configured sources: %w", err)
	}
	options := ""
	if _, err := os.Stat(debianKeyring); err == nil {
		options = "[signed-by=" + debianKeyring + "] "
	}
	var lines []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "main" || (len(f) > 3 && f[3] != "Debian") {
			continue
		}
		uri := strings.TrimRight(f[0], "/")
		if len(f) == 3 && !strings.HasSuffix(uri, "/debian") && !strings.HasSuffix(uri, "/debian-security") {
			continue
		}
		suite := release
		switch {
		case strings.HasSuffix(f[1], "-security"):
			suite += "-security"
		case strings.HasSuffix(f[1], "-updates"):
			suite += "-updates"
		case strings.Contains(f[1], "-"):
			continue
		}
		lines = append(lines, "deb "+options+uri+" "+suite+" main\n")
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if len(lines) == 0 {
		return "", fmt.Errorf("no source of Debian is configured on this machine: write one into a file, for example "+
			"'deb [signed-by=KEYRING] URL %s main', and pass it with -sources FILE", release)
	}
	return strings.Join(lines, ""), nil
}

// refresh updates the package indices if they are missing, old, or from other sources.
func (a *apt) refresh(ctx context.Context, conf string, d *Debian, arch string) error {
	root := a.root(d, arch)
	stamp := filepath.Join(root, "updated")
	if a.updated[root] {
		return nil
	}
	sources, err := a.sourcesOf(conf)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(stamp)
	known := err == nil && bytes.Equal(have, sources)
	if info, err := os.Stat(stamp); known && !a.update && err == nil && time.Since(info.ModTime()) < indexAge {
		return nil
	}
	what := fmt.Sprintf("update the package indices of Debian %s, %s", d.Release, arch)
	err = a.log.long(what, func() error {
		_, err := run(ctx, "", "apt-get", "-c", conf, "-q", "update")
		return err
	})
	if a.updated == nil {
		a.updated = map[string]bool{}
	}
	a.updated[root] = true
	if err != nil && known && !a.update && ctx.Err() == nil {
		a.log.printf("%s: failed, older indices are used: %v", what, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: check the network and the sources:\n%s", what, err, sources)
	}
	return os.WriteFile(stamp, sources, 0o644)
}

// sourcesOf returns the content of the sources that a configuration names.
func (a *apt) sourcesOf(conf string) ([]byte, error) {
	text, err := os.ReadFile(conf)
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`Dir::Etc::sourcelist "(.*)";`).FindSubmatch(text)
	return os.ReadFile(string(m[1]))
}

var instLine = regexp.MustCompile(`^Inst (\S+) \((\S+) .*\[(\S+)\]\)`)

// fetch resolves the dependencies and downloads missing packages. The result is cached until the indices or the request
// change.
func (a *apt) fetch(ctx context.Context, conf string, d *Debian, arch string) ([]debPackage, error) {
	root := a.root(d, arch)
	var names []string
	for _, p := range d.Packages {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	key, err := a.key(root, conf, names)
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(root, "resolved", key+".json")
	if packages, ok := readResolved(kept); ok {
		return packages, nil
	}
	install := append([]string{"-c", conf, "-q", "-y", "--no-install-recommends", "install"}, names...)
	out, err := run(ctx, "", "apt-get", append([]string{"-s"}, install...)...)
	if err != nil {
		return nil, fmt.Errorf("resolve the Debian packages %s for %s: %w", strings.Join(names, " "), arch, err)
	}
	packages, err := parseInst(out)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("download %d Debian packages for %s", len(packages), arch)
	err = a.log.long(what, func() error {
		_, err := run(ctx, "", "apt-get", append([]string{"--download-only"}, install...)...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for i := range packages {
		p := &packages[i]
		p.File = filepath.Join(root, "cache", "archives", p.Name+"_"+strings.ReplaceAll(p.Version, ":", "%3a")+"_"+p.Arch+".deb")
		if p.SHA256, err = hashFile(p.File); err != nil {
			return nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
	}
	data, err := json.Marshal(packages)
	if err != nil {
		return nil, err
	}
	return packages, writeFile(kept, data)
}

func parseInst(out string) ([]debPackage, error) {
	var packages []debPackage
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "Inst ") {
			continue
		}
		m := instLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("apt-get printed a line of an unknown form: %q", line)
		}
		name, _, _ := strings.Cut(m[1], ":")
		packages = append(packages, debPackage{Name: name, Version: m[2], Arch: m[3]})
	}
	slices.SortFunc(packages, func(a, b debPackage) int { return strings.Compare(a.Name, b.Name) })
	return packages, nil
}

// key identifies a request and the indices used for it.
func (a *apt) key(root, conf string, names []string) (string, error) {
	h := sha256.New()
	text, err := os.ReadFile(conf)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s\n%q\n", text, names)
	lists := filepath.Join(root, "state", "lists")
	files, err := os.ReadDir(lists)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return "", err
		}
		if !info.Mode().IsRegular() || f.Name() == "lock" {
			continue
		}
		// A Release file has the hashes of all others; a repository without one has the time of its index.
		fmt.Fprintf(h, "%s %d %d\n", f.Name(), info.Size(), info.ModTime().Unix())
		if strings.HasSuffix(f.Name(), "Release") {
			data, err := os.ReadFile(filepath.Join(lists, f.Name()))
			if err != nil {
				return "", err
			}
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func readResolved(file string) ([]debPackage, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, false
	}
	var packages []debPackage
	if json.Unmarshal(data, &packages) != nil {
		return nil, false
	}
	for _, p := range packages {
		if sum, err := hashFile(p.File); err != nil || sum != p.SHA256 {
			return nil, false
		}
	}
	return packages, true
}

// control returns the fields of a package's control file, with its text.
func control(ctx context.Context, deb string) (map[string]string, string, error) {
	text, err := run(ctx, "", "dpkg-deb", "--field", deb)
	if err != nil {
		return nil, "", fmt.Errorf("read the control file of %s: %w", filepath.Base(deb), err)
	}
	fields := map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ": "); ok && !strings.HasPrefix(k, " ") {
			fields[k] = v
		}
	}
	return fields, text, sc.Err()
}

// writeFile replaces a file in one step.
func writeFile(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return err
		}
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
