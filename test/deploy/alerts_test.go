package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The files of the chart that it puts into a PrometheusRule and a ConfigMap.
const (
	alertsFile    = "../../deploy/chart/ironlb/files/alerts.yaml"
	dashboardFile = "../../deploy/chart/ironlb/files/dashboard.json"
)

// rule is an alerting rule.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	text, err := os.ReadFile(alertsFile)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// promtool runs the program of Debian's package prometheus.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs promtool, of Debian's package prometheus")
	}
	out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %s (make deps installs it): %v\n%s", strings.Join(args, " "), err, out)
	}
}

// healthy are series of a cluster of three nodes in which all is well: values by name and labels, one each minute.
func healthy() map[string]string {
	all := map[string]string{
		`up{job="ironlb-ccm",instance="1"}`:                                                            "1",
		`up{job="ironlb-ccm",instance="2"}`:                                                            "1",
		`leader_election_master_status{job="ironlb-ccm",instance="1",name="ironlb-ccm"}`:               "1",
		`leader_election_master_status{job="ironlb-ccm",instance="2",name="ironlb-ccm"}`:               "0",
		`ironlb_ccm_bgp_unserved_addresses{job="ironlb-ccm",reason="NoSession"}`:                       "0",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv4",state="assigned"}`:         "9",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv4",state="available"}`:        "1",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv6",state="assigned"}`:         "0",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv6",state="available"}`:        "0",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-2",family="IPv6",state="assigned"}`:         "20",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-2",family="IPv6",state="available"}`:        "18446744073709551616",
		`ironlb_bgp_session_up{job="ironlb-speaker",node="a",peer="tor-2"}`:                            "1",
		`ironlb_l2_conflicts_total{job="ironlb-speaker",node="b",family="IPv4"}`:                       "3",
		`ironlb_liveness_scheduling_class{job="ironlb-speaker",node="a",class="Normal"}`:               "0",
		`ironlb_ccm_unannounced_virtual_ips{job="ironlb-ccm",instance="1",reason="DataPlaneNotReady"}`: "0",
	}
	for _, node := range []string{"a", "b", "c"} {
		for series, value := range map[string]string{
			`up{job="ironlb-speaker",node=%q}`: "1", `up{job="ironlb-bgpd",node=%q}`: "1", `ironlb_speaker_healthy{job="ironlb-speaker",node=%q}`: "1",
			`ironlb_liveness_peers_alive{job="ironlb-speaker",node=%q}`: "2", `ironlb_bgp_session_up{job="ironlb-speaker",node=%q,peer="tor-1"}`: "1",
			`ironlb_liveness_scheduling_class{job="ironlb-speaker",node=%q,class="Deadline"}`: "1",
		} {
			all[fmt.Sprintf(series, node)] = value
		}
	}
	return all
}

// gone is a series that ends.
const gone = "stale"

// faults begin after ten minutes: the series that change, to which value, and the alerts that fire, with their number.
var faults = []struct {
	name   string
	series map[string]string
	fires  map[string]int
}{
	{"nothing", nil, nil},
	{"a node dies", map[string]string{
		`up{job="ironlb-speaker",node="c"}`: "0", `up{job="ironlb-bgpd",node="c"}`: "0", `ironlb_speaker_healthy{job="ironlb-speaker",node="c"}`: gone,
		`ironlb_liveness_peers_alive{job="ironlb-speaker",node="a"}`: "1", `ironlb_liveness_peers_alive{job="ironlb-speaker",node="b"}`: "1",
		`ironlb_liveness_peers_alive{job="ironlb-speaker",node="c"}`: gone, `ironlb_bgp_session_up{job="ironlb-speaker",node="c",peer="tor-1"}`: gone,
		`ironlb_liveness_scheduling_class{job="ironlb-speaker",node="c",class="Deadline"}`: gone,
	}, map[string]int{"IronLBSpeakerDown": 1}},
	{"a firewall between speakers", map[string]string{
		`ironlb_liveness_peers_alive{job="ironlb-speaker",node="a"}`: "1", `ironlb_liveness_peers_alive{job="ironlb-speaker",node="b"}`: "0",
	}, map[string]int{"IronLBSpeakersSeparated": 2}},
	{"no deadline scheduling", map[string]string{
		`ironlb_liveness_scheduling_class{job="ironlb-speaker",node="a",class="Deadline"}`: "0",
		`ironlb_liveness_scheduling_class{job="ironlb-speaker",node="a",class="Normal"}`:   "1",
	}, map[string]int{"IronLBLivenessDegraded": 1}},
	{"a node cannot be programmed", map[string]string{
		`ironlb_speaker_healthy{job="ironlb-speaker",node="b"}`:                                        "0",
		`ironlb_ccm_unannounced_virtual_ips{job="ironlb-ccm",instance="1",reason="DataPlaneNotReady"}`: "2",
	}, map[string]int{"IronLBDataPlaneNotHealthy": 1, "IronLBAddressNotAnnounced": 1}},
	{"another host has an address", map[string]string{`ironlb_l2_conflicts_total{job="ironlb-speaker",node="b",family="IPv4"}`: "4+1"},
		map[string]int{"IronLBAddressConflict": 1}},
	{"a session goes down", map[string]string{`ironlb_bgp_session_up{job="ironlb-speaker",node="b",peer="tor-1"}`: "0"},
		map[string]int{"IronLBBGPSessionDown": 1}},
	{"a router goes down", map[string]string{
		`ironlb_bgp_session_up{job="ironlb-speaker",node="a",peer="tor-1"}`: "0", `ironlb_bgp_session_up{job="ironlb-speaker",node="b",peer="tor-1"}`: "0",
		`ironlb_bgp_session_up{job="ironlb-speaker",node="c",peer="tor-1"}`:      "0",
		`ironlb_ccm_bgp_unserved_addresses{job="ironlb-ccm",reason="NoSession"}`: "7",
	}, map[string]int{"IronLBBGPSessionDown": 3, "IronLBBGPAddressNotAnnounced": 1}},
	{"ironlb-bgpd ends", map[string]string{
		`up{job="ironlb-bgpd",node="b"}`: "0", `ironlb_bgp_session_up{job="ironlb-speaker",node="b",peer="tor-1"}`: "0",
	}, map[string]int{"IronLBBGPDaemonDown": 1, "IronLBBGPSessionDown": 1}},
	{"an earlier ironlb-bgpd answers no scrape", map[string]string{`up{job="ironlb-bgpd",node="b"}`: "0"}, nil},
	{"a pool is nearly full", map[string]string{`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv4",state="assigned"}`: "10"},
		map[string]int{"IronLBPoolNearlyFull": 1}},
	{"a pool is full", map[string]string{
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv4",state="assigned"}`:  "10",
		`ironlb_pool_addresses{job="ironlb-ccm",pool="rack-1",family="IPv4",state="available"}`: "0",
	}, map[string]int{"IronLBPoolFull": 1}},
	{"a replica of ironlb-ccm ends", map[string]string{`up{job="ironlb-ccm",instance="2"}`: "0"}, nil},
	{"every replica of ironlb-ccm ends", map[string]string{
		`up{job="ironlb-ccm",instance="1"}`: "0", `up{job="ironlb-ccm",instance="2"}`: gone,
		`leader_election_master_status{job="ironlb-ccm",instance="1",name="ironlb-ccm"}`: gone,
		`leader_election_master_status{job="ironlb-ccm",instance="2",name="ironlb-ccm"}`: gone,
	}, map[string]int{"IronLBControllerDown": 1}},
	{"no replica leads", map[string]string{`leader_election_master_status{job="ironlb-ccm",instance="1",name="ironlb-ccm"}`: "0"},
		map[string]int{"IronLBNoLeader": 1}},
}

// TestAlerts: each alert fires for its fault, and no alert fires for another one or before it.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", alertsFile)
	type (
		sample struct {
			Labels string  `json:"labels"`
			Value  float64 `json:"value"`
		}
		expression struct {
			Expr    string   `json:"expr"`
			At      string   `json:"eval_time"`
			Samples []sample `json:"exp_samples"`
		}
		series struct {
			Series string `json:"series"`
			Values string `json:"values"`
		}
		test struct {
			Name        string       `json:"name"`
			Interval    string       `json:"interval"`
			Series      []series     `json:"input_series"`
			Expressions []expression `json:"promql_expr_test"`
		}
	)
	var tests []test
	fired := map[string]int{}
	for _, fault := range faults {
		one := test{Name: fault.name, Interval: "1m"}
		all := healthy()
		for name, value := range fault.series {
			before, ok := all[name]
			if !ok {
				t.Fatalf("%s: there is no series %s", fault.name, name)
			}
			if value != gone {
				value += "x60"
			}
			all[name] = before + "x10 " + value
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			values := all[name]
			if !strings.Contains(values, "x") {
				values += "x70"
			}
			one.Series = append(one.Series, series{name, values})
		}
		var samples []sample
		for _, name := range slices.Sorted(maps.Keys(fault.fires)) {
			fired[name]++
			samples = append(samples, sample{fmt.Sprintf("{alertname=%q}", name), float64(fault.fires[name])})
		}
		const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
		one.Expressions = []expression{{firing, "10m", []sample{}}, {firing, "40m", append([]sample{}, samples...)}}
		tests = append(tests, one)
	}
	for _, r := range readAlerts(t) {
		if fired[r.Alert] == 0 {
			t.Errorf("no fault fires %s", r.Alert)
		}
	}
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "alerts.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// TestRunbooks: each alert has a severity, a summary, and a section of docs/tasks/alerts.md that it links to; and the
// page has no section for another one.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sections, _ := strings.Cut(string(page), "\n## Alerts\n")
	var have, want []string
	for _, m := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(sections, -1) {
		have = append(have, m[1])
	}
	for _, r := range readAlerts(t) {
		want = append(want, r.Alert)
		url := "https://github.com/ironlb/ironlb/blob/main/docs/tasks/alerts.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != url || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || len(r.Annotations) != 3 {
			t.Errorf("%s has annotations %q, want a summary, a description and runbook_url %s", r.Alert, r.Annotations, url)
		}
		if severity := r.Labels["severity"]; len(r.Labels) != 1 || severity != "warning" && severity != "critical" {
			t.Errorf("%s has labels %q", r.Alert, r.Labels)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("the sections are %q, want %q", have, want)
	}
}

// dashboard is what the tests read of a dashboard.
type dashboard struct {
	Title, UID string
	Editable   bool
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

type panel struct {
	Title, Description, Type string
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ Expr string }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestMetricsExist: docs/reference/metrics.md, which other tests compare with the programs, has each metric that an
// alert or a panel names.
func TestMetricsExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"up": true}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		known[m[1]] = true
	}
	exprs := map[string][]string{}
	for _, r := range readAlerts(t) {
		exprs[r.Alert] = []string{r.Expr}
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			exprs[p.Title] = append(exprs[p.Title], target.Expr)
		}
	}
	name, suffix := regexp.MustCompile(`\b(ironlb_[a-z0-9_]+|[a-z0-9_]+\{)`), regexp.MustCompile(`_(bucket|sum|count)$`)
	for of, all := range exprs {
		for _, expr := range all {
			found := name.FindAllString(expr, -1)
			if len(found) == 0 {
				t.Errorf("%s: no metric found in %s", of, expr)
			}
			for _, m := range found {
				if m = strings.TrimSuffix(m, "{"); !known[m] && !known[suffix.ReplaceAllString(m, "")] {
					t.Errorf("%s: metrics.md has no %s", of, m)
				}
			}
		}
	}
}

// TestDashboard: the rules of grafana's dashboard-linter. Each panel has a title, a description, a unit and a query that
// the variables select from; counters are read as rates; and no two panels overlap.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.Editable {
		t.Errorf("title %q, uid %q, editable: %v", d.Title, d.UID, d.Editable)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name+" "+v.Type)
	}
	if want := []string{"datasource datasource", "job query", "instance query"}; !slices.Equal(variables, want) {
		t.Errorf("the variables are %q, want %q", variables, want)
	}
	counter, rate := regexp.MustCompile(`_(total|bucket)\{`), regexp.MustCompile(`(rate|increase)\([a-z0-9_]+\{[^}]*\}\[\$__rate_interval\]\)`)
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q lacks a title, a description, a unit, a query or the data source: %+v", p.Title, p)
		}
		for _, target := range p.Targets {
			if strings.Count(target.Expr, "{") != strings.Count(target.Expr, `{job=~"$job", instance=~"$instance"`) {
				t.Errorf("panel %q: a selector of %s has no job or instance", p.Title, target.Expr)
			}
			if len(counter.FindAllString(target.Expr, -1)) != len(rate.FindAllString(target.Expr, -1)) {
				t.Errorf("panel %q: a counter of %s is not read as a rate over $__rate_interval", p.Title, target.Expr)
			}
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" || at[0] >= 24 {
					t.Fatalf("panel %q is over %q, or right of the page", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
	type record struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var records []record
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			records = append(records, record{fmt.Sprintf("panel:%d", len(records)), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")})
		}
	}
	check, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": records}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, check, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
