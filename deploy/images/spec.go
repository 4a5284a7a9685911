package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// Spec is one image as its YAML file describes it.
type Spec struct {
	// Name of the image, the last part of its reference.
	Name        string `json:"name"`
	Description string `json:"description"`
	// Reference replaces REGISTRY/NAME:TAG. Images of other projects have one.
	Reference string   `json:"reference,omitempty"`
	Platforms []string `json:"platforms"`
	// Debian is nil in an image that has only static programs.
	Debian   *Debian           `json:"debian,omitempty"`
	Programs []Program         `json:"programs"`
	Files    []File            `json:"files,omitempty"`
	Dirs     []Dir             `json:"directories,omitempty"`
	Symlinks []Symlink         `json:"symlinks,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	// User is "UID:GID", in numbers, because kubelet verifies runAsNonRoot by number.
	User       string   `json:"user"`
	Path       string   `json:"path"`
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd,omitempty"`

	file string // path of the spec
	raw  []byte
}

// Debian lists what an image takes from Debian.
type Debian struct {
	Release  string   `json:"release"`
	Packages []Reason `json:"packages"`
	// Without are omitted dependencies; packages that only they depend on are omitted too.
	Without []Reason `json:"without,omitempty"`
	// Remove are paths of packages that are left out.
	Remove []RemovedPath `json:"remove,omitempty"`
}

// Reason is a package and why it is, or is not, in the image.
type Reason struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// RemovedPath is a path of a package that is left out of the image. It may have wildcards of path.Match.
type RemovedPath struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Program is a Go program, or a prebuilt executable.
type Program struct {
	// Module is the folder of the Go module that builds the program, relative to the spec.
	Module  string   `json:"module,omitempty"`
	Package string   `json:"package,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	Ldflags string   `json:"ldflags,omitempty"` // ${VERSION} is the image's tag, ${COMMIT} that of -commit
	// File is a prebuilt executable, relative to the spec.
	File string `json:"file,omitempty"`
	// Path of the program in the image.
	Path string `json:"path"`
}

// File is a file of the image, with its content or its source.
type File struct {
	Path    string `json:"path"`
	Mode    string `json:"mode,omitempty"` // octal; 0644 if empty
	Content string `json:"content,omitempty"`
	// From is a file, relative to the spec, or to the folder of FromModule.
	From       string      `json:"from,omitempty"`
	FromModule *ModuleFile `json:"fromModule,omitempty"`
}

// ModuleFile names a module that the module in folder Module requires.
type ModuleFile struct {
	Module string `json:"module"`
	Name   string `json:"name"`
}

// Dir is a directory of the image.
type Dir struct {
	Path  string `json:"path"`
	Mode  string `json:"mode,omitempty"`  // octal; 0755 if empty
	Owner string `json:"owner,omitempty"` // "UID:GID"; 0:0 if empty
}

// Symlink is a symbolic link of the image.
type Symlink struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

var (
	validName    = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)
	validPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	validUser    = regexp.MustCompile(`^[0-9]+:[0-9]+$`)
	validMode    = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	validRelease = regexp.MustCompile(`^[a-z]+$`)
)

// platforms are the target platforms, with Debian's names of their architectures and library folders.
var platforms = map[string]struct{ debian, triplet string }{
	"linux/amd64": {"amd64", "x86_64-linux-gnu"},
	"linux/arm64": {"arm64", "aarch64-linux-gnu"},
}

// readSpec reads and validates one spec.
func readSpec(file string) (*Spec, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	s := &Spec{file: file, raw: raw}
	if err := yaml.UnmarshalStrict(raw, s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func (s *Spec) validate() error {
	switch {
	case !validName.MatchString(s.Name):
		return fmt.Errorf("name: %q: use lower case letters, digits and single dots, dashes or underscores", s.Name)
	case !validUser.MatchString(s.User):
		return fmt.Errorf("user: %q: write UID:GID in numbers, for example 65532:65532", s.User)
	case len(s.Entrypoint) == 0:
		return fmt.Errorf("entrypoint: missing: write the program's path")
	case s.Path == "":
		return fmt.Errorf("path: missing: write the folders for PATH, for example /usr/local/bin")
	case len(s.Programs) == 0 && s.Debian == nil:
		return fmt.Errorf("programs: missing: name at least one program, or Debian packages")
	case len(s.Platforms) == 0:
		return fmt.Errorf("platforms: missing: write for example [linux/amd64, linux/arm64]")
	}
	for _, p := range s.Platforms {
		if _, ok := platforms[p]; !ok {
			return fmt.Errorf("platforms: %q is not supported: use linux/amd64 or linux/arm64", p)
		}
	}
	for i, e := range s.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" || k == "PATH" {
			return fmt.Errorf("env[%d]: %q: write NAME=value; PATH has a field of its own, path", i, e)
		}
	}
	if err := s.validateDebian(); err != nil {
		return err
	}
	for i, p := range s.Programs {
		if err := p.validate(); err != nil {
			return fmt.Errorf("programs[%d]: %w", i, err)
		}
	}
	return s.validateFiles()
}

func (s *Spec) validateDebian() error {
	if s.Debian == nil {
		return nil
	}
	if !validRelease.MatchString(s.Debian.Release) {
		return fmt.Errorf("debian.release: %q: write a code name of Debian, for example bookworm", s.Debian.Release)
	}
	if len(s.Debian.Packages) == 0 {
		return fmt.Errorf("debian.packages: empty: name a package or remove the field debian")
	}
	seen := map[string]bool{}
	for field, list := range map[string][]Reason{"packages": s.Debian.Packages, "without": s.Debian.Without} {
		for i, p := range list {
			switch {
			case !validPackage.MatchString(p.Name):
				return fmt.Errorf("debian.%s[%d].name: %q is not a name of a Debian package", field, i, p.Name)
			case p.Reason == "":
				return fmt.Errorf("debian.%s[%d].reason: missing for %s", field, i, p.Name)
			case seen[p.Name]:
				return fmt.Errorf("debian.%s[%d].name: %s is listed twice", field, i, p.Name)
			}
			seen[p.Name] = true
		}
	}
	for i, r := range s.Debian.Remove {
		if err := validPath(r.Path); err != nil {
			return fmt.Errorf("debian.remove[%d].path: %w", i, err)
		}
		if _, err := path.Match(r.Path, ""); err != nil {
			return fmt.Errorf("debian.remove[%d].path: %q: %w", i, r.Path, err)
		}
		if r.Reason == "" {
			return fmt.Errorf("debian.remove[%d].reason: missing for %s", i, r.Path)
		}
	}
	return nil
}

func (p Program) validate() error {
	if err := validPath(p.Path); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	built := p.Module != "" && p.Package != ""
	if built == (p.File != "") {
		return fmt.Errorf("%s: write either module and package, or file", p.Path)
	}
	if p.File != "" && (len(p.Tags) > 0 || p.Ldflags != "") {
		return fmt.Errorf("%s: tags and ldflags apply to module and package only", p.Path)
	}
	return nil
}

func (s *Spec) validateFiles() error {
	for i, f := range s.Files {
		if err := validPath(f.Path); err != nil {
			return fmt.Errorf("files[%d].path: %w", i, err)
		}
		if (f.Content != "") == (f.From != "") {
			return fmt.Errorf("files[%d]: %s: write either content or from", i, f.Path)
		}
		if f.FromModule != nil && (f.From == "" || f.FromModule.Module == "" || f.FromModule.Name == "") {
			return fmt.Errorf("files[%d].fromModule: %s: write module, name and the field from", i, f.Path)
		}
		if f.Mode != "" && !validMode.MatchString(f.Mode) {
			return fmt.Errorf("files[%d].mode: %q: write it in octal and in quotes, for example \"0644\"", i, f.Mode)
		}
	}
	for i, d := range s.Dirs {
		if err := validPath(d.Path); err != nil {
			return fmt.Errorf("directories[%d].path: %w", i, err)
		}
		if d.Mode != "" && !validMode.MatchString(d.Mode) {
			return fmt.Errorf("directories[%d].mode: %q: write it in octal and in quotes, for example \"1777\"", i, d.Mode)
		}
		if d.Owner != "" && !validUser.MatchString(d.Owner) {
			return fmt.Errorf("directories[%d].owner: %q: write UID:GID in numbers", i, d.Owner)
		}
	}
	for i, l := range s.Symlinks {
		if err := validPath(l.Path); err != nil {
			return fmt.Errorf("symlinks[%d].path: %w", i, err)
		}
		if l.Target == "" {
			return fmt.Errorf("symlinks[%d].target: missing for %s", i, l.Path)
		}
	}
	return nil
}

func validPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%q: write an absolute path, with neither . nor .. in it", p)
	}
	return nil
}

// relative returns a path of the spec as seen from the working directory.
func (s *Spec) relative(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(s.file), p)
}

func readSpecs(files []string) ([]*Spec, error) {
	var specs []*Spec
	from := map[string]string{}
	for _, f := range files {
		s, err := readSpec(f)
		if err != nil {
			return nil, err
		}
		if other, ok := from[s.Name]; ok {
			return nil, fmt.Errorf("%s and %s: both are of image %s: rename one", other, f, s.Name)
		}
		from[s.Name] = f
		specs = append(specs, s)
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("no spec: name at least one YAML file")
	}
	return specs, nil
}

// leading reports whether b begins with prefix, to detect a file's kind.
func leading(b []byte, prefix string) bool { return bytes.HasPrefix(b, []byte(prefix)) }
