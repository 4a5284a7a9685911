package addresspool

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// coolingDown returns the cool-downs for a pool's status: the latest ones, up to the limit of the status.
func coolingDown(all []pools.CoolDown) []v1alpha1.CoolingAddress {
	var out []v1alpha1.CoolingAddress
	for _, c := range all[:min(len(all), v1alpha1.MaxCoolingDown)] {
		freed := c.Freed.Truncate(time.Second)
		if freed.Before(c.Freed) {
			freed = freed.Add(time.Second) // round up: never too early
		}
		by := ""
		if c.By != (pools.ServiceKey{}) {
			by = c.By.String()
		}
		out = append(out, v1alpha1.CoolingAddress{Address: c.Addr.String(), Freed: metav1.NewTime(freed), FreedBy: by})
	}
	return out
}

// coolDownsIn parses the cool-downs in a pool's status. Entries that a leader would not have written are left out, each
// with an error that names the field.
func coolDownsIn(obj *v1alpha1.IPAddressPool) (out []pools.CoolDown, wrong []error) {
	for i, e := range obj.Status.CoolingDown {
		c, err := readCoolDown(e)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("status.coolingDown[%d].%w", i, err))
			continue
		}
		out = append(out, c)
	}
	return out, wrong
}

func readCoolDown(e v1alpha1.CoolingAddress) (pools.CoolDown, error) {
	addr, err := netip.ParseAddr(e.Address)
	if err != nil || addr.Zone() != "" || addr.Unmap().String() != e.Address {
		return pools.CoolDown{}, fmt.Errorf("address: %q is not an IP address in its usual form", e.Address)
	}
	if e.Freed.IsZero() {
		return pools.CoolDown{}, fmt.Errorf("freed: missing time")
	}
	c := pools.CoolDown{Addr: addr, Freed: e.Freed.Time}
	if e.FreedBy == "" {
		return c, nil
	}
	ns, name, ok := strings.Cut(e.FreedBy, "/")
	if !ok || len(validation.IsDNS1123Label(ns)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return pools.CoolDown{}, fmt.Errorf("freedBy: %q is not the namespace/name of a Service", e.FreedBy)
	}
	c.By = pools.ServiceKey{Namespace: ns, Name: name}
	return c, nil
}
