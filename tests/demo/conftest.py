"""A data set of seven flights and five hours of weather, in the files' own format."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kbroker.demo.data import Files

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,2310,2245,25,115,46,29,B6,22,N292JB,JFK,SYR,50,209,22,45,2013-01-02T03:00:00Z
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,1,554,558,-4,740,728,12,UA,1696,N39463,EWR,ORD,150,719,5,58,2013-01-01T10:00:00Z
2013,1,1,NA,530,NA,NA,833,NA,UA,1714,NA,EWR,IAH,NA,1416,5,30,2013-01-01T10:00:00Z
2013,1,1,600,545,15,830,819,11,UA,300,N14228,EWR,IAH,227,1400,5,45,2013-01-01T11:00:00Z
2013,1,1,542,540,2,923,850,33,AA,1141,N619AA,JFK,MIA,160,1089,5,40,2013-01-01T10:00:00Z
2013,1,1,602,600,60,923,850,33,AA,1142,N619AA,LGA,MIA,160,1089,6,0,2013-01-01T11:00:00Z
"""

WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,5,39.02,26.06,59.37,270,10.357019999999999,NA,0,1012,10,2013-01-01T10:00:00Z
EWR,2013,1,1,6,39.02,26.06,59.37,270,10.357019999999999,NA,0.01,1e3,10,2013-01-01T11:00:00Z
JFK,2013,1,1,5,NA,26.06,59.37,270,10.357019999999999,NA,0.3,1012,10,2013-01-01T10:00:00Z
JFK,2013,1,1,22,39.02,26.06,59.37,270,10.357019999999999,NA,0,1012,10,2013-01-02T03:00:00Z
LGA,2013,1,1,5,39.02,26.06,59.37,270,10.357019999999999,NA,0,1012,10,2013-01-01T10:00:00Z
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(flights=tmp_path / "flights.csv.zip", weather=tmp_path / "weather.csv")
    with zipfile.ZipFile(found.flights, "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    found.weather.write_text(WEATHER)
    return found
