package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed skips.yaml
var skipsText []byte

// Skip excludes specs that do not apply.
type Skip struct {
	Spec           string   `json:"spec,omitempty"`  // full name
	Match          string   `json:"match,omitempty"` // or a regular expression of full names
	Configurations []string `json:"configurations,omitempty"`
	Reason         string   `json:"reason"`

	re *regexp.Regexp
}

// readSkips reads the list and names the entry and the field of each mistake.
func readSkips(data []byte) ([]Skip, error) {
	var skips []Skip
	if err := yaml.UnmarshalStrict(data, &skips); err != nil {
		return nil, fmt.Errorf("read skips.yaml: %w", err)
	}
	var errs []error
	for i := range skips {
		if err := skips[i].validate(); err != nil {
			errs = append(errs, fmt.Errorf("skips.yaml, entry %d: %w", i+1, err))
		}
	}
	return skips, errors.Join(errs...)
}

func (s *Skip) validate() (err error) {
	if (s.Spec == "") == (s.Match == "") {
		return errors.New("set either spec or match")
	}
	if strings.TrimSpace(s.Reason) == "" {
		return errors.New("reason is empty: write why the spec does not apply")
	}
	for _, name := range s.Configurations {
		if !slices.Contains(configurationNames(), name) {
			return fmt.Errorf("configurations: no configuration %q: there are %s", name, strings.Join(configurationNames(), ", "))
		}
	}
	if s.Match != "" {
		if s.re, err = regexp.Compile(s.Match); err != nil {
			return fmt.Errorf("match: %w", err)
		}
	}
	return nil
}

func (s *Skip) String() string { return s.Spec + s.Match }

func (s *Skip) in(configuration string) bool {
	return len(s.Configurations) == 0 || slices.Contains(s.Configurations, configuration)
}

func (s *Skip) covers(spec Spec) bool {
	if s.re != nil {
		return s.re.MatchString(spec.Name)
	}
	return s.Spec == spec.Name
}

// Skipped is an excluded spec.
type Skipped struct {
	Spec
	Reason string
}

// Plan lists the specs of a configuration.
type Plan struct {
	Configuration
	Run  []Spec
	Skip []Skipped
}

// plan returns the plan of a configuration for the selected specs.
func plan(c Configuration, selected []Spec, skips []Skip) Plan {
	p := Plan{Configuration: c}
	for _, spec := range selected {
		i := slices.IndexFunc(skips, func(s Skip) bool { return s.in(c.Name) && s.covers(spec) })
		if i < 0 {
			p.Run = append(p.Run, spec)
		} else {
			p.Skip = append(p.Skip, Skipped{spec, skips[i].Reason})
		}
	}
	return p
}

// unused returns an error for each entry that excludes no spec of a configuration that it names, or of any
// configuration.
func unused(specs []Spec, skips []Skip) error {
	var errs []error
	selected := map[string][]Spec{}
	for _, c := range configurations {
		s, err := selectSpecs(specs, c.Specs)
		if err != nil {
			return fmt.Errorf("configuration %s: %w", c.Name, err)
		}
		selected[c.Name] = s
	}
	for i := range skips {
		matched := false
		for _, c := range configurations {
			here := skips[i].in(c.Name) && slices.ContainsFunc(selected[c.Name], skips[i].covers)
			matched = matched || here
			if !here && slices.Contains(skips[i].Configurations, c.Name) {
				errs = append(errs, fmt.Errorf("skips.yaml, entry %d: no spec of configuration %s is %s: remove the configuration", i+1, c.Name, &skips[i]))
			}
		}
		if !matched {
			errs = append(errs, fmt.Errorf("skips.yaml, entry %d: no spec is %s: remove the entry", i+1, &skips[i]))
		}
	}
	return errors.Join(errs...)
}
