package oldest

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// TestPoolAddresses: the CEL rules refuse lists of addresses that no pool can have, each with the expected message.
func TestPoolAddresses(t *testing.T) {
	s := newScheme(t)
	decoder := serializerOf(s)
	var crd apiextensions.CustomResourceDefinition
	obj, _, err := decoder.Decode(documents(t, deploy+"/chart/ironlb/crds/ironlb.io_ipaddresspools.yaml")[0], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Default(obj)
	if err := s.Convert(obj, &crd, nil); err != nil {
		t.Fatal(err)
	}
	full, err := apiextensions.GetSchemaForVersion(&crd, "v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(full.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	for addresses, want := range map[string]string{
		`"1.2.3.10-1.2.3.4"`:                               "ends before it begins",
		`"203.0.113.1 - 198.51.100.255"`:                   "ends before it begins",
		`"192.0.2.1-192.0.2.9", "192.0.2.9-192.0.2.20"`:    "overlaps another entry",
		`"192.0.2.1-192.0.2.9", "192.0.2.5"`:               "overlaps another entry",
		`"192.0.2.1", "192.0.2.1/32"`:                      "overlaps another entry",
		`"192.0.2.0-192.0.2.63", "192.0.2.16/28"`:          "overlaps another entry",
		`"192.0.2.16/28", "192.0.2.20-192.0.2.63"`:         "overlaps another entry",
		`"2001:db8::/64", "2001:db8::5-2001:db8::9"`:       "overlaps another entry",
		`"240.0.0.0/4"`:                                    "broadcast",
		`"126.0.0.0/7"`:                                    "loopback",
		`"192.0.0.0/2"`:                                    "multicast",
		`"126.0.0.0-128.0.0.0"`:                            "between its ends",
		`"169.253.0.0-169.255.0.0"`:                        "between its ends",
		`"223.0.0.0-241.0.0.0"`:                            "between its ends",
		`"0.1.2.0/24"`:                                     "unspecified",
		`"0.1.2.3-1.2.3.4"`:                                "unspecified",
		`"fe00::/8"`:                                       "link-local",
		`"192.0.2.0/28", "192.0.2.16-192.0.2.31"`:          "",
		`"192.0.2.10-192.0.2.10", "192.0.2.250-192.0.3.2"`: "",
		`"192.0.2.32", "2001:db8::/64", "2001:db8:0:1::a-2001:db8:0:1::ff", "240.0.0.0/8"`: "",
		`"126.255.255.255", "128.0.0.0-169.253.255.255", "169.255.0.0/24"`:                 "",
	} {
		var pool map[string]any
		if err := json.Unmarshal([]byte(`{"metadata": {"name": "p"}, "spec": {"addresses": [`+addresses+`]}}`), &pool); err != nil {
			t.Fatal(err)
		}
		errs, left := validator.Validate(t.Context(), field.NewPath(""), structural, pool, nil, celconfig.RuntimeCELCostBudget)
		got := errs.ToAggregate()
		if want == "" && got != nil || want != "" && (got == nil || !strings.Contains(got.Error(), want)) {
			t.Errorf("%s: %v, want %q", addresses, got, want)
		}
		if used := celconfig.RuntimeCELCostBudget - left; used > 100_000 {
			t.Errorf("%s costs %d", addresses, used)
		}
	}
}
