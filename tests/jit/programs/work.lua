local function leaf(n) local s = 0 for i = 1, n do s = s + i % 7 end return s end
local function outer(n) local t = 0 for i = 1, 50 do t = t + leaf(n) end return t end
io.write("ready\n") io.flush()
while true do outer(20000) end
