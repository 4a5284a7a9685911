package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// junitSuite is a <testsuite>. Each spec of the plan is a test case; inapplicable ones are skipped with their reasons.
type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
	Output  string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
}

// writeJUnit writes the outcome of a configuration as a JUnit file.
func writeJUnit(w io.Writer, o Outcome) error {
	passed, failed := o.count()
	suite := junitSuite{
		Name: "upstream/" + o.Name, Tests: passed + failed + len(o.Skip) + len(o.Problems), Failures: failed + len(o.Problems),
		Skipped: len(o.Skip), Time: seconds(o.Took.Seconds()),
	}
	for _, p := range o.Problems {
		suite.add(junitCase{Name: "suite", Time: "0", Failure: &junitMessage{Message: clean(p), Type: "suite"}})
	}
	for _, r := range o.Results {
		c := junitCase{Name: r.Name, Time: seconds(r.Took.Seconds())}
		if r.State != "passed" {
			c.Failure, c.Output = &junitMessage{Message: clean(r.Message), Type: r.State}, clean(r.Output)
		}
		suite.add(c)
	}
	for _, s := range o.Skip {
		suite.add(junitCase{Name: s.Name, Time: "0", Skipped: &junitMessage{Message: clean(s.Reason)}})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(suite); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	return nil
}

func (s *junitSuite) add(c junitCase) {
	c.Class = s.Name
	s.Cases = append(s.Cases, c)
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

// clean drops the control characters that XML does not allow.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}
