package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"sigs.k8s.io/yaml"
)

// Media types of a chart in a registry (https://helm.sh/docs/topics/registries/) and of the metadata that Artifact Hub
// reads there (https://artifacthub.io/docs/topics/repositories/helm-charts/).
const (
	mediaTypeHelmConfig        = "application/vnd.cncf.helm.config.v1+json"
	mediaTypeHelmChart         = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	mediaTypeArtifactHubConfig = "application/vnd.cncf.artifacthub.config.v1+yaml"
	mediaTypeArtifactHub       = "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
)

// chartFile is what is read of Chart.yaml.
type chartFile struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Version     string `json:"version"`
	AppVersion  string `json:"appVersion"`
}

// charts writes the chart, as an archive and into the layout, the manifests and the CRDs, with the version and the
// registry of the release.
func (r *releaser) charts(images layout.Path) error {
	files, err := chartFiles(r.relative(r.Chart))
	if err != nil {
		return err
	}
	var before chartFile
	if err := yaml.Unmarshal(files["Chart.yaml"], &before); err != nil {
		return fmt.Errorf("parse Chart.yaml: %w", err)
	}
	var values struct {
		Image struct{ Registry string }
	}
	if err := yaml.Unmarshal(files["values.yaml"], &values); err != nil {
		return fmt.Errorf("parse values.yaml: %w", err)
	}
	version := strings.TrimPrefix(r.tag, "v")
	for name, changes := range map[string][]change{
		"Chart.yaml": {
			{"\nversion: " + before.Version + "\n", "\nversion: " + version + "\n"},
			{"\nappVersion: " + before.AppVersion + "\n", "\nappVersion: " + r.tag + "\n"},
		},
		"values.yaml": {{"\n  registry: " + values.Image.Registry + "\n", "\n  registry: " + r.registry + "\n"}},
		"README.md":   {{"| `image.registry` | `" + values.Image.Registry + "` |", "| `image.registry` | `" + r.registry + "` |"}},
	} {
		if files[name], err = apply(files[name], changes); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if files["LICENSE"], err = os.ReadFile(r.relative(r.License)); err != nil {
		return err
	}
	after := before
	after.Version, after.AppVersion = version, r.tag
	archive, err := r.chartArchive(after, files)
	if err != nil {
		return err
	}
	return errors.Join(r.pushable(images, after, files["Chart.yaml"], archive), r.manifests(before.AppVersion, values.Image.Registry), r.crds(files))
}

// change replaces one text by another.
type change struct{ from, to string }

// apply makes changes, each of which must be possible at one place.
func apply(text []byte, changes []change) ([]byte, error) {
	for _, c := range changes {
		if n := bytes.Count(text, []byte(c.from)); n != 1 {
			return nil, fmt.Errorf("has %q %d times, want once: release.yaml and the chart do not fit", strings.TrimSpace(c.from), n)
		}
		text = bytes.Replace(text, []byte(c.from), []byte(c.to), 1)
	}
	return text, nil
}

// chartFiles reads the files of a chart that .helmignore does not list, by their path in it.
func chartFiles(dir string) (map[string][]byte, error) {
	ignored, err := helmIgnore(filepath.Join(dir, ".helmignore"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, pattern := range ignored {
			only := strings.HasSuffix(pattern, "/")
			if match, _ := path.Match(strings.TrimSuffix(pattern, "/"), d.Name()); match && d.IsDir() == only {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
		}
		if d.IsDir() {
			return nil
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(file)
		return err
	})
	return files, err
}

// helmIgnore reads the patterns of a .helmignore file. Those with a folder or a negation are refused.
func helmIgnore(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var patterns []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if _, bad := path.Match(line, ""); bad != nil || strings.HasPrefix(line, "!") || strings.Contains(strings.TrimSuffix(line, "/"), "/") {
			return nil, fmt.Errorf("%s: %q: write the pattern of one name, without folder and negation", file, line)
		}
		patterns = append(patterns, line)
	}
	return patterns, err
}

// chartArchive writes the chart as an archive and returns its content.
func (r *releaser) chartArchive(chart chartFile, files map[string][]byte) ([]byte, error) {
	t := newTree(false)
	for name, content := range files {
		if err := t.add(path.Join(chart.Name, name), regular(0o644, content, r.Chart)); err != nil {
			return nil, err
		}
	}
	archive, err := t.gzip(r.when)
	if err != nil {
		return nil, err
	}
	return archive, writeFile(filepath.Join(r.out, chart.Name+"-"+chart.Version+".tgz"), archive)
}

// pushable puts the chart into the layout as `helm push` would push it, and Artifact Hub's metadata beside it.
func (r *releaser) pushable(images layout.Path, chart chartFile, text, archive []byte) error {
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	ref := r.registry + "/" + chart.Name + ":"
	m := v1.Manifest{Annotations: map[string]string{
		"org.opencontainers.image.title": chart.Name, "org.opencontainers.image.version": chart.Version,
		"org.opencontainers.image.description": chart.Description, "org.opencontainers.image.source": r.Source,
		"org.opencontainers.image.revision": r.commit,
	}}
	listed := map[string]string{annotationRefName: ref + chart.Version}
	if err := writeArtifact(images, m, blob{mediaTypeHelmConfig, config}, blob{mediaTypeHelmChart, archive}, listed); err != nil {
		return err
	}
	metadata := "# Metadata of the chart's repository: https://artifacthub.io/docs/topics/repositories/\n"
	if r.artifactHub != "" {
		metadata += "repositoryID: " + r.artifactHub + "\n"
	} else {
		metadata += "# Without repositoryID, Artifact Hub does not verify the publisher.\n"
		r.log.printf("%s has no repositoryID: pass -artifacthub-id ID (make: ARTIFACTHUB_ID=ID)", artifactHubFile)
	}
	if err := writeFile(filepath.Join(r.out, artifactHubFile), []byte(metadata)); err != nil {
		return err
	}
	listed = map[string]string{annotationRefName: ref + "artifacthub.io"}
	return writeArtifact(images, v1.Manifest{}, blob{mediaTypeArtifactHubConfig, []byte("{}")}, blob{mediaTypeArtifactHub, []byte(metadata)}, listed)
}

// manifests writes the plain manifests with the tag and the registry of the release in place of those that they have.
func (r *releaser) manifests(tag, registry string) error {
	image := regexp.MustCompile(`(?m)^( *(?:- )?image: )` + regexp.QuoteMeta(registry) + `/(\S+):` + regexp.QuoteMeta(tag) + `$`)
	label := `app.kubernetes.io/version: "` + tag + `"`
	for _, file := range r.Manifests {
		text, err := os.ReadFile(r.relative(file))
		if err != nil {
			return err
		}
		if !image.Match(text) {
			return fmt.Errorf("%s has no image of %s with the tag %s: run make generate", file, registry, tag)
		}
		text = image.ReplaceAll(text, []byte("${1}"+r.registry+"/${2}:"+r.tag))
		text = bytes.ReplaceAll(text, []byte(label), []byte(`app.kubernetes.io/version: "`+r.tag+`"`))
		// Comments: the registry, and the paths, since the file is not in a checkout any more.
		text = bytes.ReplaceAll(text, []byte(registry+"/"), []byte(r.registry+"/"))
		for _, other := range r.Manifests {
			text = bytes.ReplaceAll(text, []byte("deploy/"+path.Base(other)), []byte(path.Base(other)))
		}
		if err := writeFile(filepath.Join(r.out, path.Base(file)), text); err != nil {
			return err
		}
	}
	return nil
}

// crds writes the CustomResourceDefinitions of the chart into one file.
func (r *releaser) crds(files map[string][]byte) error {
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Dir(name) == "crds" {
			fmt.Fprintf(&all, "---\n%s", bytes.TrimPrefix(files[name], []byte("---\n")))
		}
	}
	if all.Len() == 0 {
		return errors.New("crds: the chart has none")
	}
	return writeFile(filepath.Join(r.out, crdsFile), all.Bytes())
}
