package ipvstest_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

func TestContract(t *testing.T) {
	ipvstest.Contract(t, func(*testing.T) ipvstest.Driver { return ipvstest.NewKernel() })
}

func TestDifferences(t *testing.T) {
	ipvstest.Differences(t, ipvstest.NewKernel())
}

func TestContractIPVS(t *testing.T) {
	ipvstest.ContractIPVS(t, func(*testing.T) (ipvstest.IPVS, ipvstest.Other) {
		k := ipvstest.NewKernel()
		return k, k
	})
}

func TestFailIsThatOpsError(t *testing.T) {
	boom := errors.New("boom")
	k := ipvstest.NewKernel()
	k.Fail = func(op ipvs.Op) error {
		if op.Action == ipvs.AddReal {
			return boom
		}
		return nil
	}
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	done, err := k.Apply([]ipvs.Op{
		{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}},
		{Action: ipvs.AddReal, Virtual: key, Real: netip.MustParseAddrPort("192.0.2.11:8080")},
	})
	if len(done) != 1 || !errors.Is(err, boom) {
		t.Errorf("Apply = %v, %v; want one op done and boom", done, err)
	}
	k.Flush()
	if table, err := k.List(); err != nil || len(table) != 0 {
		t.Errorf("after Flush List = %v, %v", table, err)
	}
}
