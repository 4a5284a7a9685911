package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Plugin is a plugin of kubectl, published as archives and for Krew.
type Plugin struct {
	Name             string   `json:"name"` // without kubectl-
	ShortDescription string   `json:"shortDescription"`
	Description      string   `json:"description"`
	Program          Program  `json:"program"`
	Platforms        []string `json:"platforms"`
}

func (p *Plugin) validate() error {
	switch {
	case !validName.MatchString(p.Name):
		return fmt.Errorf("name: %q: write what follows kubectl, in lower case", p.Name)
	case p.ShortDescription == "" || p.Description == "":
		return errors.New("shortDescription and description: Krew shows both: write them")
	case len(p.Platforms) == 0:
		return errors.New("platforms: missing: write for example [linux/amd64, darwin/arm64]")
	case p.Program.File != "":
		return errors.New("program.file: each platform needs a program of its own: write module and package")
	}
	for i, platform := range p.Platforms {
		if system, machine, _ := strings.Cut(platform, "/"); system == "" || machine == "" {
			return fmt.Errorf("platforms[%d]: %q: write OS/ARCH, for example darwin/arm64", i, platform)
		}
	}
	if err := p.Program.validate(); err != nil {
		return fmt.Errorf("program: %w", err)
	}
	return nil
}

// krewManifest is a plugin as Krew's index has it: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
type krewManifest struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// plugins builds the plugin for each platform, and writes archives with its license and notices, their SBOMs and the
// manifest for Krew. It returns the programs.
func (r *releaser) plugins(ctx context.Context) (parts, error) {
	program := path.Base(r.Plugin.Program.Path)
	// The program is built as those of images are.
	spec := &Spec{Name: program, Programs: []Program{r.Plugin.Program}, file: r.file}
	all := parts{spec: spec, reference: program + ":" + r.tag}
	for _, platform := range r.Plugin.Platforms {
		built, err := r.programs.build(ctx, spec, stamp{r.tag, r.commit}, platform)
		if err != nil {
			return all, err
		}
		all.programs = append(all.programs, built...)
	}
	if err := all.license(ctx); err != nil {
		return all, err
	}
	krew := krewManifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": r.Plugin.Name},
		Spec: krewSpec{Version: r.tag, Homepage: r.Source, ShortDescription: r.Plugin.ShortDescription, Description: r.Plugin.Description},
	}
	for i, platform := range r.Plugin.Platforms {
		k, err := r.plugin(all, all.programs[i], platform)
		if err != nil {
			return all, fmt.Errorf("%s: %w", platform, err)
		}
		k.URI = r.url + "/" + k.URI
		krew.Spec.Platforms = append(krew.Spec.Platforms, k)
	}
	text, err := yaml.Marshal(krew)
	if err != nil {
		return all, err
	}
	return all, writeFile(filepath.Join(r.out, r.Plugin.Name+".krew.yaml"), text)
}

// plugin writes the archive of one platform and its SBOM, and returns what Krew's manifest has of it. The URI is the name
// of the archive.
func (r *releaser) plugin(all parts, prog built, platform string) (krewPlatform, error) {
	system, machine, _ := strings.Cut(platform, "/")
	k := krewPlatform{Bin: all.spec.Name, URI: all.spec.Name + "-" + system + "-" + machine}
	k.Selector.MatchLabels = map[string]string{"os": system, "arch": machine}
	license, err := os.ReadFile(r.relative(r.License))
	if err != nil {
		return k, err
	}
	binary, err := os.ReadFile(prog.file)
	if err != nil {
		return k, err
	}
	t := newTree(false)
	pack, suffix := t.gzip, ".tar.gz"
	if system == "windows" {
		k.Bin += ".exe"
		pack, suffix = t.zip, ".zip"
	}
	from := "the plugin"
	err = errors.Join(t.add(k.Bin, regular(0o755, binary, from)), t.add("LICENSE", regular(0o644, license, from)),
		t.add(noticesFile, regular(0o644, []byte(all.copyright()), from)))
	if err != nil {
		return k, err
	}
	archive, err := pack(r.when)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(archive)
	k.SHA256 = hex.EncodeToString(sum[:])
	root := newSPDXPackage("Archive", k.URI+suffix, r.tag, "")
	root.Purpose = "ARCHIVE"
	doc := newSPDX(k.URI+suffix+" "+r.tag, k.URI, k.SHA256, root, r.when)
	doc.program(root.SPDXID, prog, r.tag, all.licenses)
	sbom, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return k, err
	}
	if err := writeFile(filepath.Join(r.out, k.URI+".spdx.json"), sbom); err != nil {
		return k, err
	}
	k.URI += suffix
	return k, writeFile(filepath.Join(r.out, k.URI), archive)
}
