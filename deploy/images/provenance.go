package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// statement is an in-toto statement v1 with SLSA's provenance v1 as its predicate: https://slsa.dev/spec/v1.0/provenance
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      struct {
			Builder struct {
				ID      string            `json:"id"`
				Version map[string]string `json:"version"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	ResolvedDependencies []resource        `json:"resolvedDependencies"`
}

// resource is a file, an image or a source, with its digest.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance writes from what, by whom and with which parameters the files and images were built. It has no time and no
// name of a machine, so that others can repeat it.
func (r *releaser) provenance(all []parts, images []pushed) error {
	var s statement
	s.Type, s.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	files, err := hashes(r.out)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Dir(name) == "." { // files of layouts have their digest as name
			s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": files[name]}})
		}
	}
	for _, m := range images {
		s.Subject = append(s.Subject, resource{Name: m.repository, Digest: map[string]string{m.digest.Algorithm: m.digest.Hex}})
	}
	s.Predicate.BuildDefinition = buildDefinition{
		BuildType: r.Source + "/blob/" + r.tag + "/RELEASING.md#build-type",
		ExternalParameters: map[string]string{
			"version": r.tag, "registry": r.registry, "url": r.url, "artifactHubID": r.artifactHub,
			"sourceDateEpoch": r.when.Format(time.RFC3339),
		},
		ResolvedDependencies: r.dependencies(all),
	}
	s.Predicate.RunDetails.Builder.ID = r.builtBy
	s.Predicate.RunDetails.Builder.Version = map[string]string{"go": all[0].programs[0].info.GoVersion}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.out, provenanceFile), append(text, '\n'))
}

// dependencies are the commit and the Debian packages. The commit pins Go and all modules by their hashes.
func (r *releaser) dependencies(all []parts) []resource {
	debian := map[string]resource{}
	for _, p := range all {
		for _, d := range p.packages {
			debian[debianPURL(d)] = resource{URI: debianPURL(d), Digest: map[string]string{"sha256": d.SHA256}}
		}
	}
	out := []resource{{URI: "git+" + strings.TrimSuffix(r.Source, ".git") + "@" + r.commit, Digest: map[string]string{"gitCommit": r.commit}}}
	for _, purl := range slices.Sorted(maps.Keys(debian)) {
		out = append(out, debian[purl])
	}
	return out
}
