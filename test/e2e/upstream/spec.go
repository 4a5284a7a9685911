package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Spec is one of upstream's tests.
type Spec struct {
	Name   string
	Labels []string
}

// alone reports whether no other spec may run at the same time.
func (s Spec) alone() bool {
	return slices.Contains(s.Labels, "Serial") || slices.Contains(s.Labels, "Disruptive")
}

// Result of a spec that was run.
type Result struct {
	Spec
	State   string // as ginkgo names it: "passed", "failed", "skipped", "timedout", ...
	Took    time.Duration
	Message string // why it failed or was skipped
	Output  string
}

// ginkgoReport holds the used fields of ginkgo's --json-report.
type ginkgoReport struct {
	SpecReports                []ginkgoSpec
	SpecialSuiteFailureReasons []string
}

type ginkgoSpec struct {
	ContainerHierarchyTexts  []string
	ContainerHierarchyLabels [][]string
	LeafNodeType             string
	LeafNodeText             string
	LeafNodeLabels           []string
	State                    string
	RunTime                  time.Duration
	Failure                  struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
	CapturedGinkgoWriterOutput string
	CapturedStdOutErr          string
}

// readReport reads ginkgo's report: the result of each spec, including filtered ones, and failures outside specs.
func readReport(r io.Reader) (specs []Result, outside []string, err error) {
	var reports []ginkgoReport
	if err := json.NewDecoder(r).Decode(&reports); err != nil {
		return nil, nil, fmt.Errorf("read ginkgo's report: %w", err)
	}
	for _, report := range reports {
		outside = append(outside, report.SpecialSuiteFailureReasons...)
		for _, s := range report.SpecReports {
			result := s.result()
			switch {
			case s.LeafNodeType == "It":
				specs = append(specs, result)
			case s.State != "passed" && s.State != "skipped":
				outside = append(outside, s.LeafNodeType+": "+result.Message)
			}
		}
	}
	return specs, outside, nil
}

func (s ginkgoSpec) result() Result {
	labels := slices.Clone(s.LeafNodeLabels)
	for _, more := range s.ContainerHierarchyLabels {
		labels = append(labels, more...)
	}
	slices.Sort(labels)
	message := s.Failure.Message
	if message != "" && s.State != "skipped" {
		message = fmt.Sprintf("%s (%s:%d)", message, s.Failure.Location.FileName, s.Failure.Location.LineNumber)
	}
	return Result{
		Spec:    Spec{Name: strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " "), Labels: slices.Compact(labels)},
		State:   s.State,
		Took:    s.RunTime,
		Message: message,
		Output:  s.CapturedGinkgoWriterOutput + s.CapturedStdOutErr,
	}
}

// selectSpecs returns the specs that match one of the expressions, sorted by name.
func selectSpecs(specs []Spec, expressions []string) ([]Spec, error) {
	var selected []Spec
	for _, text := range expressions {
		re, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("select specs: %w", err)
		}
		matched := 0
		for _, s := range specs {
			if re.MatchString(s.Name) {
				selected = append(selected, s)
				matched++
			}
		}
		if matched == 0 {
			return nil, fmt.Errorf("select specs: no spec matches %s", text)
		}
	}
	slices.SortFunc(selected, func(a, b Spec) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(selected, func(a, b Spec) bool { return a.Name == b.Name }), nil
}
